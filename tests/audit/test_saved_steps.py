"""Verify and the saved steps of durable jobs (I20). Verify accepts true logs, and finds each planted lie."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import text

from rq_core.connections.client import Client
from rq_core.model.job import Claim, NewJob, profile
from rq_core.model.outcome import REASONS
from rq_core.model.result_encoding import pack_result
from rq_core.model.unique_names import digest_of
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.boxes import Saving
from rq_core.protocol.calls.boxes import save as save_call
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.replay.replay import Replay
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.liar import forge_chain, lying
from tests.kit.story import MemoryWriter

LIFE, OTHER = "9f3a0b1c22aa0001", "0" * 16
D, E = "d" * 32, "e" * 32


def told(log: MemoryWriter) -> list[tuple[str, str]]:
    """Return the violations that the replay reports, each as its invariant and its text."""
    replay = Replay("mail")
    replay.feed(log.rows)
    replay.finish()
    return [(found.invariant, found.says) for found in replay.violations]


def running(log: MemoryWriter, job_id: str = "a") -> str:
    """Enqueue a job and claim it. Return the fence of the claim."""
    log.jobs("enqueued", [job_id, 1, None, "send", "normal", 3, 3, D], by="producer")
    return log.jobs("claimed", [job_id, 1])


def save(
    log: MemoryWriter,
    fence: str,
    entry: int,
    name: str,
    digest: str = D,
    life: str = LIFE,
    by: str = "w-1",
    base: str | None = None,
) -> None:
    log.jobs("step_saved", ["a", fence, life, entry, name, 8, digest, None, base], by=by)


def test_replay_accepts_the_steps_of_a_job_in_a_true_log() -> None:
    log = MemoryWriter()
    fence = running(log)
    log.jobs("step_begun", ["a", fence, LIFE, 1, "charge"])
    save(log, fence, 2, "other")
    save(log, fence, 1, "charge")
    log.jobs("retried", ["a", fence, None, 1, None])
    fence = log.jobs("claimed", ["a", 2])
    save(log, fence, 3, "receipt", base="1/0")
    # A failover took it, and the worker sends it again.
    log.begin(log.now_ms + 1, "replid_changed", f"{log.epoch}-{log.seq}")
    save(log, fence, 3, "receipt", base="1/0")
    for failures in (2, 3):
        log.jobs("retried", ["a", fence, None, failures, None])
        fence = log.jobs("claimed", ["a", failures + 1])
    log.jobs("died", ["a", fence, "attempts_spent", 4, None])

    assert [] == told(log)


@pytest.mark.parametrize(
    ("base", "says"),
    [
        (None, "says that the job has 0/0 failures/losses, by the log 1/0"),
        ("2/0", "says that the job has 2/0 failures/losses, by the log 1/0"),
        ("1/0", None),
    ],
)
def test_replay_reports_a_saved_step_that_resets_another_number_of_failures_than_the_log_has(
    base: str | None, says: str | None
) -> None:
    log = MemoryWriter()
    fence = running(log)
    log.jobs("retried", ["a", fence, None, 1, None])
    save(log, log.jobs("claimed", ["a", 2]), 1, "charge", base=base)

    assert [("I4", says)] * (says is not None) == told(log)


def test_replay_reports_a_job_that_is_retried_after_its_last_attempt() -> None:
    log = MemoryWriter()
    log.jobs(
        "baseline", ["a", "running", "send", "normal", 3, 3, 1, None, 2, 3, 0, 0, "7-1", "w-1"]
    )
    save(log, "7-1", 1, "charge", base="3/0")
    log.jobs("retried", ["a", "7-1", None, 4, None])
    log.jobs("retried", ["a", log.jobs("claimed", ["a", 3]), None, 5, None])
    fence = log.jobs("claimed", ["a", 4])
    assert [] == told(log)

    log.jobs("retried", ["a", fence, None, 6, None])

    says = "makes the job ready at failure 6 of at most 3, 3 before its last saved step"
    assert [("I4", says)] == told(log)


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([(1, "one"), (3, "three")], "is entry 3, the one before was 1"),
        ([(2, "two")], "is entry 2, the one before was 0"),
        ([(0, "none")], "is entry 0, the one before was 0"),
        ([(1, "one"), (1, "two")], "is entry 1 of 'two', which was 'one'"),
        ([(1, "one"), (1, "one", E)], f"saves 'one' with digest {E}, which was {D}"),
        ([(1, "one"), (2, "two", D, OTHER)], f"is in box {OTHER}, the job's is {LIFE}"),
        ([(1, "one", D, LIFE, "w-2")], "is written by w-2, the claim is that of w-1"),
        ([(1, "one"), (2, "two"), (3, "one")], "is entry 3 of 'one', which is entry 1"),
        ([(1, "one?")], "is named 'one?', and no step can have this name"),
        ([(1, "one"), (2, "two"), (1, "one")], "is saved a second time"),
    ],
)  # fmt: skip
def test_replay_reports_a_false_event_about_a_saved_step(
    steps: Sequence[tuple[Any, ...]], says: str
) -> None:
    log = MemoryWriter()
    fence = running(log)
    for step in steps:
        save(log, fence, *step)

    assert [("I20", says)] == told(log)


@pytest.mark.parametrize(
    ("size", "message", "says"),
    [
        (9, None, "saves 'one' with 9 bytes, which had 8"),
        (8, 2, "saves 'one' from signal 2, which was from none"),
        (8, None, None),
    ],
)
def test_replay_reports_a_step_that_is_saved_again_with_another_size_or_signal(
    size: int | None, message: int | None, says: str | None
) -> None:
    log = MemoryWriter()
    fence = running(log)
    save(log, fence, 1, "one")
    log.begin(log.now_ms + 1, "replid_changed", f"{log.epoch}-{log.seq}")
    log.jobs("step_saved", ["a", fence, LIFE, 1, "one", size, D, None, None, message])

    assert [("I20", says)] * (says is not None) == told(log)


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize("is_older", [True, False])
def test_replay_reports_a_step_that_begins_a_second_time_though_no_failover_lost_it(
    *, is_saved: bool, is_older: bool
) -> None:
    log = MemoryWriter()
    fence = running(log)
    log.jobs("step_begun", ["a", fence, LIFE, 1, "one"])
    if is_saved:
        save(log, fence, 1, "one")
    if is_older:
        log.begin(log.now_ms + 1, "replid_changed", f"{log.epoch}-{log.seq}")
    log.jobs("step_begun", ["a", fence, LIFE, 1, "one"])

    assert [("I20", "is begun a second time")] * (not is_older) == told(log)


def test_replay_reports_a_saved_step_without_a_digest() -> None:
    log = MemoryWriter()
    log.jobs("step_saved", ["a", running(log), LIFE, 1, "one", 8])

    assert [("I6", "does not say digest")] == told(log)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("step_begun", {"entry": True}),
        ("step_begun", {"kind": "Wait"}),
        ("step_saved", {"bytes": -1}),
        ("signalled", {"message": 1.0}),
        ("signalled", {"key": None}),
    ],
)
def test_replay_reports_a_field_of_a_step_or_signal_with_a_value_that_the_mirror_never_writes(
    event: str, said: dict[str, Any]
) -> None:
    log = MemoryWriter()
    fence = running(log)
    log.jobs("step_begun", ["a", fence, LIFE, 1, "one"])
    save(log, fence, 1, "one")
    log.jobs("signalled", ["a", LIFE, 1, "ok", None, 8, D], by="ann")
    at = [row[4] for row in log.rows].index(event)
    detail = json.dumps({**json.loads(log.rows[at][10]), **said}, separators=(",", ":"))
    log.rows[at] = (*log.rows[at][:10], detail)

    ((name, value),) = said.items()
    assert ("I7", f"says {name} {value!r}, which the mirror does not write") in told(log)


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        (9, "other", ("I6", "is said to be of task other, and the job's is send")),
        (7, 1, ("I4", "is said to be of claim 1, and is of none")),
    ],
)
def test_replay_reports_a_false_task_or_claim_number_in_the_row_of_an_event_that_changes_no_state(
    column: int, value: object, says: tuple[str, str]
) -> None:
    log = MemoryWriter()
    log.jobs("enqueued", ["tick-s-5", 1, None, "send", "normal", 3, 3, D], by="producer")
    fence = running(log)
    first = len(log.rows)
    log.jobs("step_begun", ["a", fence, LIFE, 1, "one"])
    save(log, fence, 1, "one")
    log.jobs("signalled", ["a", LIFE, 1, "ok", None, 8, D], by="ann")
    log.jobs("signal_lost", ["a", LIFE, 1], by="ann")
    log.jobs("cost_settled", ["a", fence, "tokens:1"])
    log.jobs("scope_paused", ["a", fence, "task@1s=send", log.now_ms + 9])
    log.jobs("settlement_refused", ["a", "7-1", "complete", "stale"])
    log.jobs("freed", ["a", "name"], by="ann")
    log.jobs("ticked", ["tick-s-5", "s", 1, 5, 5, 9, "fired", 0], by="w-1")
    beside = {found for found in told(log) if found[0] not in ("I4", "I6")}
    for at in range(first, len(log.rows)):
        row = list(log.rows[at])
        row[column] = value
        log.rows[at] = tuple(row)

    found = told(log)

    assert len(log.rows) - first == found.count(says)
    assert beside | {says} == set(found)


@pytest.mark.parametrize(
    ("size", "digest", "says"),
    [
        (5, digest_of('"one"'), None),
        (5, D, f"has digest {D}, and its value has {digest_of(chr(34) + 'one' + chr(34))}"),
        (6, digest_of('"one"'), "has 6 bytes, and its value has 5"),
    ],
)
def test_replay_reports_a_step_whose_logged_value_has_another_digest_or_size(
    size: int, digest: str, says: str | None
) -> None:
    log = MemoryWriter()
    fence = running(log)
    record = ["a", fence, LIFE, 1, "one", size, digest, '"one"', None]
    log.jobs("step_saved", record, by="w-1")

    assert [("I20", says)] * (says is not None) == told(log)


def test_replay_reports_a_step_that_was_saved_without_a_claim_in_force() -> None:
    log = MemoryWriter()
    fence = running(log)
    save(log, "7-1", 1, "one")
    log.jobs("retried", ["a", fence, None, 1, None])
    save(log, fence, 2, "two", base="1/0")
    again = log.jobs("claimed", ["a", 2])
    log.jobs("succeeded", ["a", again])
    save(log, again, 3, "three")

    assert [
        ("I20", f"is written under fence 7-1, in force is {fence}"),
        ("I20", "is written, and the job is ready"),
        ("I20", "is written, and the job is not alive"),
    ] == told(log)


def test_replay_accepts_that_a_restored_job_continues_with_a_later_step() -> None:
    log = MemoryWriter()
    fields = ["a", 1, None, "ready", "send", "normal", 3, 3, D, None, 0, 0, 0, 0, None, None]
    log.jobs("restored", [*fields, None, None, None, None, None, None, LIFE], by="ada")
    fence = log.jobs("claimed", ["a", 1])
    save(log, fence, 5, "five")

    assert [] == told(log)


# On real servers.

QUEUE = "mail"


@pytest.fixture
def mirror_all(client: Client, database: Database) -> Callable[[], int]:
    return lambda: auditlog.drain(Mirror(Outbox(client), database, QUEUE))


def claim(client: Client) -> Claim:
    (held,) = client.run(claims.claim(QUEUE, "w-1", 1)).jobs
    return held


def saved(client: Client, held: Claim, *entries: int) -> None:
    records = [
        Saving(held.id, held.fence, LIFE, "save", n, f"step-{n}", pack_result(f"{n}"))
        for n in entries
    ]
    assert not client.run(save_call(QUEUE, "w-1", records))


def durable_job(client: Client) -> Claim:
    """Enqueue a job. Its first claim saves a step and fails, its second saves two steps. Return the second claim."""
    job = NewJob("a", QUEUE, profile("send"), "{}")
    client.run(client.calls.enqueue.many([job]))
    first = claim(client)
    saved(client, first, 1)
    client.run(claims.fail(QUEUE, "w-1", [(first.id, first.fence, "retry", 0, "failed", "null")]))
    second = claim(client)
    saved(client, second, 2, 3)
    return second


def test_the_steps_in_sql_agree_with_redis_during_and_after_a_run(
    client: Client, database: Database, mirror_all: Callable[[], int]
) -> None:
    held = durable_job(client)
    mirror_all()
    assert ([], []) == compare(client, database, QUEUE)
    (job,) = auditlog.rows(database, "SELECT life, state FROM job")
    assert (LIFE, "running") == (job["life"], job["state"])

    client.run(claims.complete(QUEUE, "w-1", [(held.id, held.fence)]))
    mirror_all()

    result = verify(database)
    assert result.violations == []
    assert result.verdict is LogVerdict.HOLDS
    assert 3 == len(auditlog.rows(database, "SELECT 1 FROM job_event WHERE type = 'step_saved'"))


def test_verify_finds_a_step_that_was_changed_in_sql(
    client: Client, database: Database, mirror_all: Callable[[], int]
) -> None:
    durable_job(client)
    mirror_all()
    with lying(database) as liar:
        changed = liar.execute(
            text(
                "UPDATE job_event SET detail = replace(detail, :was, :now)"
                " WHERE type = 'step_saved' AND detail LIKE '%step-2%'"
            ),
            {"was": '"entry":2', "now": '"entry":9'},
        )
        assert 1 == changed.rowcount
    forge_chain(database)

    found = [(each.invariant, each.says) for each in verify(database).violations]

    assert ("I20", "is entry 9, the one before was 1") in found


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_replay_accepts_each_reason_for_which_the_value_of_a_step_is_not_kept(reason: str) -> None:
    log = MemoryWriter()
    log.jobs("step_saved", ["a", running(log), LIFE, 1, "map:rows.1", None, reason])

    assert [] == told(log)
