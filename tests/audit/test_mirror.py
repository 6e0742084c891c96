"""The mirror copies every entry once and in order, and its counts and its chain are right."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from rq_core.errors import AuditElsewhere, ServerUnavailable
from sql_audit.mirror.intake import unpack_entry
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.turn import STEPS, Mirror, TurnOutcome
from sql_audit.proof import record
from sql_audit.proof.verify import verify
from sql_audit.queries.history import audit_id
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import APPEND_ONLY, mirror_prune
from tests.audit.conftest import QUEUE
from tests.kit import auditlog
from tests.kit.outbox import StreamSource, StreamWriter, enqueue
from tests.rigs import budgets


def a_day(writer: StreamWriter) -> None:
    """Make events of many kinds: of jobs, of a baseline, and of the queue."""
    enqueue(writer, "a", "b", "c", "d", "e")
    enqueue(writer, "later", due_ms=writer.now_ms + 50)
    fence = writer.jobs("claimed", ["a", 1], ["b", 1], ["c", 1], by="w-1")
    writer.jobs("succeeded", ["a", fence], by="w-1")
    error = {"type": "ValueError", "message": "no such\naddress\ttab \\ ü", "traceback": "…"}
    writer.jobs("retried", ["b", fence, writer.now_ms + 5, 1, error], by="w-1")
    writer.jobs("lease_expired", ["c", fence, "w-1", 1, "ready"], by="w-2")
    writer.now_ms += 50
    writer.jobs("promoted", ["b", 9], ["later", 10], by="w-2")
    fence = writer.jobs("claimed", ["b", 2], ["c", 2], ["later", 1], by="w-2")
    writer.jobs("died", ["b", fence, "attempts", 2, error], by="w-2")
    writer.jobs("cancel_requested", ["c", fence], by="anna", why="not needed")
    writer.jobs("cancelled", ["c", fence], ["d", None], by="w-2", why="asked to")
    writer.jobs("rolled_back", ["later", fence, None, "shutdown"], by="w-2")
    writer.jobs("requeued", ["b", 11], by="anna")
    writer.jobs("settlement_refused", ["a", fence, "complete", "gone"], by="w-9")
    writer.jobs("baseline", ["x", "ready", "send", "high", 3, 3, 5], by="audit")
    writer.queue_event("paused")
    writer.queue_event("policy_changed", "lease_ms", "30000", "5000")


def test_the_rows_in_sql_equal_the_entries_of_the_stream(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    a_day(writer)

    auditlog.drain(mirror)

    assert auditlog.told_by_sql(database, QUEUE) == auditlog.told_by_stream(writer.log)
    auditlog.assert_chain_holds(database, QUEUE)


def test_only_the_last_mirrored_entry_stays_in_the_outbox(
    writer: StreamWriter, source: StreamSource, mirror: Mirror
) -> None:
    a_day(writer)

    auditlog.drain(mirror)

    left = source.read_outbox(QUEUE, "-", 10)
    assert [entry_id for entry_id, _ in left] == [writer.log[-1][0]]
    assert writer.backlog() == (0, 0)


def test_a_batch_ends_at_its_limit_of_events(
    writer: StreamWriter, make_mirror: Callable[..., Mirror], database: Database
) -> None:
    for n in range(10):
        writer.life(*(f"{n}-{i}" for i in range(7)))
    mirror = make_mirror(limits=BatchLimits(events=20))

    auditlog.drain(mirror)

    sizes = [r["events"] for r in auditlog.rows(database, "SELECT events FROM mirror_batch")]
    assert sum(sizes) == 1 + 10 * 3 * 7
    assert max(sizes) < 20 + 7
    assert auditlog.told_by_sql(database, QUEUE) == auditlog.told_by_stream(writer.log)
    assert writer.backlog() == (0, 0)


def test_a_batch_ends_at_its_limit_of_bytes(
    writer: StreamWriter, make_mirror: Callable[..., Mirror], database: Database
) -> None:
    for n in range(4):
        writer.jobs("died", [f"j{n}", None, "final", 1, {"message": "x" * 5000}])

    auditlog.drain(make_mirror(limits=BatchLimits(size=6000)))

    batches = auditlog.rows(database, "SELECT entries FROM mirror_batch ORDER BY batch")
    assert [b["entries"] for b in batches] == [3, 2]


def test_the_number_of_statements_does_not_grow_with_the_batch(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    def statements_of(jobs: int, prefix: str) -> list[str]:
        ids = [f"{prefix}{i}" for i in range(jobs)]
        enqueue(writer, *ids)
        first = writer.jobs("claimed", *([i, 1] for i in ids))
        writer.jobs("retried", *([i, first, None, 1, None] for i in ids))
        mirror.turn()
        again = writer.jobs("claimed", *([i, 2] for i in ids))
        writer.jobs("succeeded", *([i, again] for i in ids))
        seen: list[str] = []
        database.on_statement = seen.append
        turn = mirror.turn()
        database.on_statement = None
        assert turn.events == 2 * jobs
        return seen

    mirror.turn()
    small, large = statements_of(2, "s"), statements_of(2000, "l")

    assert [s.split()[:3] for s in small] == [s.split()[:3] for s in large]
    budgets.check("sql_statements", f"batch.{database.dialect}", len(large))


def test_the_database_refuses_changes_to_logged_rows(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    a_day(writer)
    writer.raw({"type": "nonsense", "by": "x"})
    auditlog.drain(mirror)
    writer.source.redis.delete(writer.keys("outbox"))
    writer.begin(writer.epoch + 10, "created")
    auditlog.drain(mirror)
    record.record_proofs(database, verify(database))
    with database.writing() as connection:
        assert connection is not None
        finished: dict[str, Any] = {column.name: None for column in mirror_prune.columns}
        finished |= {"id": 1, "queue": QUEUE, "kind": "done", "actor": "a", "rules": "", "head": ""}
        numbers = (
            "at_ms", "epoch", "seq", "cut_at_ms", "batch", "cut_batch", "through_entries", "through_events",
        )  # fmt: skip
        connection.execute(mirror_prune.insert(), finished | dict.fromkeys(numbers, 2**50))
        connection.commit()
    before = auditlog.events(database, QUEUE)

    for table in APPEND_ONLY:
        for statement in (f"UPDATE {table} SET queue = 'x'", f"DELETE FROM {table}"):
            with database.writing() as connection:
                assert connection is not None
                with pytest.raises(DBAPIError, match="append-only"):
                    connection.execute(text(statement))

    assert auditlog.events(database, QUEUE) == before


def test_the_database_refuses_to_replace_an_event(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    """Checks INSERT OR REPLACE in SQLite, which skips DELETE triggers by default, and a second INSERT in PostgreSQL.

    In PostgreSQL, an event with the same number and another time has another key. The mirror itself looks for such an
    event, and verify reports it.
    """
    writer.life("a")
    auditlog.drain(mirror)
    sqlite = database.dialect == "sqlite"
    copy = (
        f"INSERT {'OR REPLACE' if sqlite else ''} INTO job_event "
        "(queue, epoch, seq, ordinal, type, at_ms) "
        f"SELECT queue, epoch, seq, ordinal, type, {'1' if sqlite else 'at_ms'} FROM job_event"
    )

    with database.writing() as connection:
        assert connection is not None
        with pytest.raises(DBAPIError):
            connection.execute(text(copy))

    auditlog.assert_chain_holds(database, QUEUE)


def turns_of_two(
    writer: StreamWriter, make_mirror: Callable[..., Mirror], at: str
) -> tuple[Mirror, list[TurnOutcome]]:
    """Let a second mirror make a whole turn while the first mirror is at this step of its turn.

    Returns the first mirror, and the outcomes of both turns.
    """
    first, second = make_mirror(), make_mirror()
    first.turn()
    second.turn()
    writer.life("a", "b")
    outcomes = []

    def meanwhile(step: str) -> None:
        if step == at:
            outcomes.append(second.turn().outcome)

    first._done = meanwhile
    outcomes.append(first.turn().outcome)
    first._done = lambda _step: None
    return first, outcomes


def test_a_second_mirror_writes_nothing_while_the_first_mirror_writes(
    writer: StreamWriter, make_mirror: Callable[..., Mirror], database: Database
) -> None:
    _, outcomes = turns_of_two(writer, make_mirror, "locked")

    assert outcomes == [TurnOutcome.HELD, TurnOutcome.MIRRORED]
    assert auditlog.told_by_sql(database, QUEUE) == auditlog.told_by_stream(writer.log)


def test_a_mirror_reads_again_if_another_mirror_has_committed_since_its_read(
    writer: StreamWriter, make_mirror: Callable[..., Mirror], database: Database
) -> None:
    first, outcomes = turns_of_two(writer, make_mirror, "read")
    auditlog.drain(first)

    assert outcomes == [TurnOutcome.MIRRORED, TurnOutcome.STALE]
    assert auditlog.told_by_sql(database, QUEUE) == auditlog.told_by_stream(writer.log)
    assert writer.backlog() == (0, 0)


def test_a_trim_that_arrives_late_is_counted_once(
    writer: StreamWriter,
    make_mirror: Callable[..., Mirror],
    source: StreamSource,
) -> None:
    """Checks a first mirror that stops before its trim. The trim arrives after a turn of the second mirror."""
    first, second = make_mirror(), make_mirror()
    writer.life("a", "b", "c")

    class Stopped(Exception):
        pass

    def stop(step: str) -> None:
        if step == "committed":
            raise Stopped

    first._done = stop
    with pytest.raises(Stopped):
        first.turn()
    writer.life("d")
    auditlog.drain(second)
    late = next(t for t in source.trims if t[2] == 3 * 3 + 1)
    source.trim(QUEUE, audit_id(second.database), *late[1:])

    assert writer.backlog() == (0, 0)


def test_a_queue_of_another_database_is_refused_and_gets_no_cursor(
    writer: StreamWriter, mirror: Mirror, source: StreamSource, database: Database
) -> None:
    source.attach(QUEUE, "another")
    writer.life("a")

    with pytest.raises(AuditElsewhere, match="another"):
        mirror.turn()

    assert auditlog.rows(database, "SELECT queue FROM mirror_cursor") == []


def test_the_mirror_attaches_a_queue_with_a_new_epoch_again_before_it_trims_the_outbox(
    writer: StreamWriter, source: StreamSource, database: Database
) -> None:
    steps: list[str] = []
    writer.life("a")

    Mirror(source, database, QUEUE, on_step=steps.append).turn()

    # The batch begins an epoch, so the mirror makes sure of its place before it trims.
    assert steps == [*STEPS[:-1], "attached", "trimmed"]


# What Redis forgot, or changed.


def test_missing_entries_are_recorded_as_a_gap(
    writer: StreamWriter, source: StreamSource, mirror: Mirror, database: Database
) -> None:
    writer.life("a")
    auditlog.drain(mirror)
    enqueue(writer, "b")
    lost = writer.log[-1][0]
    enqueue(writer, "c")
    source.redis.xdel(writer.keys("outbox"), lost)

    auditlog.drain(mirror)

    gap = auditlog.one(database, "SELECT * FROM mirror_epoch WHERE kind = 'gap'")
    assert (gap["seq"], gap["old_seq"], gap["missing"]) == (5, 3, 1)
    assert [e["job_id"] for e in auditlog.events(database, QUEUE) if e["job_id"]][-1] == "c"
    assert auditlog.one(database, "SELECT gaps FROM mirror_cursor")["gaps"] == 1


def test_a_changed_last_mirrored_entry_goes_to_quarantine_and_is_followed_by_a_baseline_event(
    writer: StreamWriter, source: StreamSource, mirror: Mirror, database: Database
) -> None:
    writer.life("a")
    auditlog.drain(mirror)
    at, _ = writer.log[-1]
    key = writer.keys("outbox")
    source.redis.delete(key)
    source.redis.xadd(key, {"type": "paused", "at": "5", "by": "z"}, id=at)
    enqueue(writer, "b")

    auditlog.drain(mirror)
    auditlog.drain(mirror)

    found = auditlog.rows(database, "SELECT kind, epoch, seq FROM mirror_epoch ORDER BY id")
    assert [r["kind"] for r in found] == ["started", "changed", "started", "lost"]
    assert f"{found[1]['epoch']}-{found[1]['seq']}" == at
    # Both that SQL cannot number are kept: the one in the anchor's place, and what followed it.
    kept = auditlog.rows(database, "SELECT kind, raw FROM quarantine ORDER BY id")
    assert [r["kind"] for r in kept] == ["conflict", "conflict"]
    assert [unpack_entry(r["raw"])["type"] for r in kept] == ["paused", "enqueued"]
    assert auditlog.events(database, QUEUE)[-1]["detail"] == (
        '{"field":"baseline","old":"pending","new":"done"}'
    )


def test_redis_begins_exactly_one_epoch_after_the_outbox_was_deleted(
    writer: StreamWriter, source: StreamSource, mirror: Mirror, database: Database
) -> None:
    writer.life("a")
    auditlog.drain(mirror)
    source.redis.delete(writer.keys("outbox"))

    auditlog.drain(mirror)
    writer.begin(writer.epoch + 10, "replid_changed", f"{writer.epoch + 2}-1")
    writer.life("b")
    auditlog.drain(mirror)

    kinds = [
        r["kind"] for r in auditlog.rows(database, "SELECT kind FROM mirror_epoch ORDER BY id")
    ]
    assert kinds == ["started", "started", "lost", "started"]
    assert [e["type"] for e in auditlog.events(database, QUEUE)][-6:] == [
        "epoch_started", "policy_changed", "epoch_started", "enqueued", "claimed", "succeeded",
    ]  # fmt: skip


def test_a_loss_of_entries_is_recorded_once_though_redis_used_their_numbers_again(
    writer: StreamWriter, source: StreamSource, mirror: Mirror, database: Database
) -> None:
    """Checks that the baseline after the loss does not record a second loss.

    The batch with the reused numbers also begins an epoch.
    """
    writer.life("a")
    auditlog.drain(mirror)
    anchor = writer.log[-1]
    enqueue(writer, "forgotten")
    auditlog.drain(mirror)
    source.redis.delete(writer.keys("outbox"))
    source.redis.xadd(writer.keys("outbox"), anchor[1], id=anchor[0])
    writer.seq -= 1
    enqueue(writer, "passed")
    writer.begin(writer.epoch + 10, "replid_changed", writer.log[-1][0])

    assert mirror.turn().outcome is TurnOutcome.BEHIND
    auditlog.drain(mirror)

    found = auditlog.rows(database, "SELECT kind, epoch FROM mirror_epoch ORDER BY id")
    kinds = [row["kind"] for row in found]
    assert kinds == ["started", "changed", "started", "lost", "started"]
    assert found[3]["epoch"] == found[2]["epoch"]
    assert auditlog.one(database, "SELECT gaps FROM mirror_cursor")["gaps"] == 2


def test_a_missing_entry_before_the_start_of_an_epoch_is_recorded_as_a_gap(
    writer: StreamWriter, source: StreamSource, mirror: Mirror, database: Database
) -> None:
    """Checks that the mirror begins a batch at the epoch, because an entry before the epoch is missing."""
    enqueue(writer, "a")
    auditlog.drain(mirror)
    enqueue(writer, "b")
    enqueue(writer, "missing")
    lost = writer.log[-1][0]
    writer.begin(writer.epoch + 10, "replid_changed", lost)
    source.redis.xdel(writer.keys("outbox"), lost)

    turns = [mirror.turn().entries for _ in range(4)]

    found = auditlog.rows(
        database, "SELECT kind, missing, reason FROM mirror_epoch WHERE seq = 0 ORDER BY id"
    )
    assert [(row["kind"], row["missing"]) for row in found] == [
        ("started", None), ("started", None), ("gap", 1), ("started", None),
    ]  # fmt: skip
    assert found[-1]["reason"] == "behind", "a gap makes the mirror ask what lives"
    assert turns == [1, 1, 2, 0]


def test_the_mirror_records_how_many_entries_were_lost_before_an_epoch(
    writer: StreamWriter, source: StreamSource, mirror: Mirror, database: Database
) -> None:
    writer.life("a")
    auditlog.drain(mirror)
    old = writer.epoch
    writer.begin(old + 10, "replid_changed", f"{old}-7")
    auditlog.drain(mirror)
    writer.begin(old + 20, "created", None)
    auditlog.drain(mirror)

    found = auditlog.rows(database, "SELECT kind, reason, missing FROM mirror_epoch ORDER BY id")
    assert [(r["kind"], r["missing"]) for r in found] == [
        ("started", None),
        ("started", None),
        ("gap", 4),
        ("started", None),  # what Redis said then of what lives
        ("started", None),
        ("lost", None),
    ]
    assert "nothing" in found[-1]["reason"]


def test_a_mirror_can_begin_in_the_middle_of_a_stream(
    writer: StreamWriter, source: StreamSource, mirror: Mirror, database: Database
) -> None:
    writer.life("a")
    source.redis.xtrim(writer.keys("outbox"), minid=writer.log[2][0], approximate=False)

    auditlog.drain(mirror)

    kind = auditlog.one(database, "SELECT kind, seq FROM mirror_epoch")
    assert kind == {"kind": "joined", "seq": 2}
    job = auditlog.one(database, "SELECT state, complete, claims FROM job")
    assert job == {"state": "succeeded", "complete": 0, "claims": 1}


@pytest.mark.parametrize("queues", [("mail",), ("mail", "web", "x.y:z")])
def test_queues_with_equal_job_ids_are_mirrored_separately(
    source: StreamSource,
    make_mirror: Callable[..., Mirror],
    database: Database,
    queues: tuple[str, ...],
) -> None:
    writers = [StreamWriter(source, queue) for queue in queues]
    for writer in writers:
        writer.life("same", "id")

    for queue in queues:
        auditlog.drain(make_mirror(queue))

    for writer in writers:
        assert auditlog.told_by_sql(database, writer.queue) == auditlog.told_by_stream(writer.log)
        auditlog.assert_chain_holds(database, writer.queue)
    assert len(auditlog.rows(database, "SELECT * FROM job")) == 2 * len(queues)


def test_the_trim_after_a_failed_trim_also_subtracts_its_entries_from_the_backlog(
    writer: StreamWriter, source: StreamSource, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a Redis that is unreachable between commit and trim. The next trim also subtracts the entries of the
    failed trim."""
    enqueue(writer, "a", "b")
    with monkeypatch.context() as away:

        def trim(*_args: object) -> None:
            raise ServerUnavailable(url="redis://", why="it went away")

        away.setattr(source, "trim", trim)
        with pytest.raises(ServerUnavailable):
            mirror.turn()

    enqueue(writer, "c")
    auditlog.drain(mirror)

    assert writer.backlog() == (0, 0)
