"""`audit verify` on a mirrored log. The command proves an unchanged log, and names every planted lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import Result
from sqlalchemy import text

from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import heads, verify
from sql_audit.queries.history import audit_id
from sql_audit.store.chain import Link, found_digest, genesis, rows_digest
from sql_audit.store.connection.copy import copy_text
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import EVENT_COLUMNS
from sql_audit.store.storable_text import to_json
from tests.audit.conftest import QUEUE
from tests.kit import auditlog
from tests.kit.command import audit
from tests.kit.liar import lying
from tests.kit.outbox import StreamWriter, enqueue
from tests.kit.story import Story

Row = dict[str, Any]


@pytest.fixture
def log(writer: StreamWriter, make_mirror: Callable[..., Mirror], database: Database) -> Log:
    """Return a mirrored log of a queue with caps and a rate, in many batches."""
    Story(writer, seed=7).run(250)
    auditlog.drain(make_mirror(limits=BatchLimits(events=25)))
    return Log(database)


@dataclass
class Log:
    """A log. Its writes bypass the protections of the schema."""

    database: Database

    def events(self, kind: str | None = None) -> list[Row]:
        found = auditlog.events(self.database, QUEUE)
        return [row for row in found if kind in (None, row["type"])]

    def run(self, *statements: tuple[str, dict[str, Any]]) -> None:
        """Run a statement that changes protected rows."""
        with lying(self.database) as connection:
            for statement, values in statements:
                connection.execute(text(statement), values)

    def change(self, row: Row, **values: Any) -> None:
        """Rewrite one event in SQL."""
        sets = ", ".join(f"{name} = :new_{name}" for name in values)
        named = {f"new_{name}": value for name, value in values.items()}
        self.run((f"UPDATE job_event SET {sets} WHERE {KEY}", {**key(row), **named}))

    def delete(self, row: Row) -> None:
        self.run((f"DELETE FROM job_event WHERE {KEY}", key(row)))

    def insert(self, row: Row) -> None:
        columns = ", ".join(EVENT_COLUMNS)
        marks = ", ".join(f":{name}" for name in EVENT_COLUMNS)
        self.run((f"INSERT INTO job_event ({columns}) VALUES ({marks})", row))

    def chain_again(self) -> None:
        """Compute the chain of the changed rows, as an attacker with all rights can."""
        log = self.events()
        prev = genesis(audit_id(self.database), QUEUE)
        statements = []
        batches = auditlog.rows(self.database, "SELECT * FROM mirror_batch ORDER BY batch")
        for batch in batches:
            mine = auditlog.rows_of(batch, log)
            with self.database.readers.connect() as connection:
                found = found_digest(connection, QUEUE, batch["batch"])
            link = Link.of(batch)._replace(
                prev=prev, events=len(mine), digest=rows_digest(copy_text(mine)), found=found
            )
            prev = link.head
            sets = ", ".join(f"{name} = :{name}" for name in ("prev", "events", "digest", "found"))
            statements.append(
                (f"UPDATE mirror_batch SET {sets}, head = :head WHERE batch = :batch", link.row)
            )
        cursor = {"h": prev, "n": len(log)}
        gaps = "(SELECT COUNT(*) FROM mirror_epoch WHERE kind IN ('gap', 'changed', 'lost'))"
        counted = f"UPDATE mirror_cursor SET head = :h, events = :n, gaps = {gaps}"
        self.run(*statements, (counted, cursor))


KEY = "epoch = :epoch AND seq = :seq AND ordinal = :ordinal"


def key(row: Row) -> Row:
    return {name: row[name] for name in ("epoch", "seq", "ordinal")}


def detail(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row["detail"])
    return found


def command(database: Database, *arguments: str) -> Result:
    url = database.address.render_as_string(hide_password=False)
    return audit(*arguments, "--audit", url)


# The truth.


def test_verify_proves_an_untouched_log(log: Log, database: Database) -> None:
    result = verify(database)
    said = command(database, "verify")

    assert result.verdict is LogVerdict.HOLDS
    found = result.queues[QUEUE]
    assert (found.violations, found.notes) == ([], [])
    assert found.events == len(log.events())
    assert found.batches > 5
    assert said.exit_code == 0, said.output
    last = log.events()[-1]
    assert f"complete through epoch {last['epoch']}, number {last['seq']}" in said.output
    assert said.output.splitlines()[-1] == "holds"
    # Who trusts it must know what it did not look at.
    assert said.stderr == "Redis was not compared: --redis URL compares it\n"


def test_verify_prints_json(log: Log, database: Database) -> None:
    said = command(database, "verify", "--json")

    document = json.loads(said.stdout)
    assert (document["verdict"], document["violations"]) == ("holds", [])
    assert document["events"] == document["queues"][QUEUE]["events"] == len(log.events())


@pytest.mark.parametrize("size", [1, 30, 100_000])
def test_the_verdict_does_not_depend_on_the_number_of_rows_in_each_read(
    log: Log, database: Database, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sql_audit.proof.log.READ_EVENTS", size)

    assert verify(database).verdict is LogVerdict.HOLDS


def test_verify_checks_a_growing_log_up_to_its_last_event_when_verify_began(
    log: Log, writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    count = len(log.events())
    grown: list[int] = []

    def grow(_queue: str, _done: int, _of: int) -> None:
        if not grown:
            writer.queue_event("paused")
            grown.append(auditlog.drain(mirror))

    result = verify(database, on_progress=grow)

    assert (result.verdict, result.events) == (LogVerdict.HOLDS, count)
    assert verify(database).events == count + 1


# Lies. Each takes the log, tells one lie, and returns the event that must be named.


def lowered_cap(log: Log) -> Row:
    """Lie: a claim carries a cap lower than the number of its holders."""
    row = next(r for r in log.events("claimed") if any(s[0] == "queue" for s in scopes(r)))
    changed = [[s, 0 if s == "queue" else c[0], *c[1:]] for s, *c in scopes(row)]
    log.change(row, detail=to_json({"scopes": changed}))
    return row


def scopes(row: Row) -> list[list[Any]]:
    found: list[list[Any]] = detail(row).get("scopes") or []
    return found


def raised_cap(log: Log) -> Row:
    """Lie: a claim carries a cap that is higher than the stored cap."""
    row = log.events("claimed")[-1]
    changed = [[s, 99 if s == "queue" else c[0], *c[1:]] for s, *c in scopes(row)]
    log.change(row, detail=to_json({"scopes": changed}))
    return row


def missing_end(log: Log) -> Row:
    """Lie: the event that ended a claim becomes an event without effect. The next claim then overlaps this claim."""
    claimed = log.events("claimed")
    for end in log.events("rolled_back") + log.events("lease_expired"):
        again = [r for r in claimed if r["job_id"] == end["job_id"] and r["seq"] > end["seq"]]
        if again:
            refused = to_json({"fence": detail(end)["fence"], "outcome": "fail", "reason": "stale"})
            log.change(end, type="settlement_refused", worker="w-9", claim=None, detail=refused)
            return again[0]
    raise AssertionError("no job was claimed twice")


def doubled_claim(log: Log) -> Row:
    """Lie: a claim is in the log twice."""
    row = log.events("claimed")[3]
    in_entry = [r for r in log.events() if r["seq"] == row["seq"]]
    copy = {**row, "ordinal": len(in_entry)}
    log.insert(copy)
    return copy


def hidden_claim(log: Log) -> Row:
    """Lie: the log has a claim of a job that only waited, because a scope of the job was full."""
    events = log.events()
    told = {row["job_id"]: [r for r in events if r["job_id"] == row["job_id"]] for row in events}
    lanes = {r["job_id"]: detail(r).get("lane") for r in events if r["type"] == "enqueued"}
    held: dict[str, set[str]] = {}
    for place, row in enumerate(events):
        job = row["job_id"]
        if row["type"] == "claimed":
            held[job] = {s for s, *_ in scopes(row)}
            full = any(sum(s in h for h in held.values()) == c[0] for s, *c in scopes(row))
            last_of_entry = events[place + 1]["seq"] != row["seq"]
            waiting = [
                i
                for i, lane in lanes.items()
                if lane == lanes[job] and told[i][0]["seq"] < row["seq"] and len(told[i]) == 1
            ]
            if full and last_of_entry and waiting:
                lie = {**row, "ordinal": row["ordinal"] + 1, "job_id": waiting[0], "claim": 1}
                log.insert(lie)
                return lie
        elif row["type"] != "cancel_requested":
            held.pop(job, None)
    raise AssertionError("no scope was full")


def illegal_step(log: Log) -> Row:
    """Lie: a running job is pruned, which no transition allows."""
    row = log.events("succeeded")[2]
    log.change(row, type="pruned")
    return row


def stale_fence(log: Log) -> Row:
    """Lie: an accepted settlement has the fence of another claim."""
    row = log.events("succeeded")[4]
    log.change(row, detail='{"fence":"7-7"}')
    return row


def skipped_claim(log: Log) -> Row:
    """Lie: the numbers of a job's claims skip a number."""
    row = log.events("claimed")[5]
    log.change(row, claim=row["claim"] + 1)
    return row


def too_many_failures(log: Log) -> Row:
    row = log.events("retried")[0]
    log.change(row, detail=to_json({**detail(row), "failures": 3}))
    return row


def missing_entry(log: Log) -> Row:
    """Lie: an entry is missing. Return the next entry, which verify names."""
    gone = log.events("discarded")[0]
    log.delete(gone)
    return next(r for r in log.events() if r["seq"] > gone["seq"])


def earlier_claim(log: Log) -> Row:
    """Lie: a claim carries a slower rate than the true rate. The claim is honest, but too early for the slower rate."""
    row = log.events("claimed")[-1]
    changed = [[s, 1, 60_000, 1] if "@" in s else [s, *c] for s, *c in scopes(row)]
    log.change(row, detail=to_json({"scopes": changed}))
    return row


def unversioned_change(log: Log) -> Row:
    row = log.events("cap_changed")[-1]
    log.change(row, detail=to_json({**detail(row), "version": 77}))
    return row


LIES = {
    "I2": (missing_end, doubled_claim),
    "I3": (lowered_cap, raised_cap, hidden_claim, earlier_claim, unversioned_change),
    "I4": (skipped_claim, too_many_failures),
    "I5": (missing_entry,),
    "I6": (illegal_step,),
    "I9": (stale_fence,),
}


@pytest.mark.parametrize(
    "invariant, lie",
    [(name, lie) for name, lies in LIES.items() for lie in lies],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_verify_finds_a_changed_row_despite_a_forged_chain(
    log: Log, database: Database, invariant: str, lie: Callable[[Log], Row]
) -> None:
    row = lie(log)
    log.chain_again()

    result = verify(database)
    said = command(database, "verify")
    document = json.loads(command(database, "verify", "--json").stdout)

    named = [(v.invariant, v.epoch, v.seq, v.ordinal) for v in result.violations]
    # Rows that were made of the truth do not fit the lie any more.
    named = [each for each in named if each[0] != "I8"]
    assert named[0] == (invariant, row["epoch"], row["seq"], row["ordinal"]), result.violations
    assert result.verdict is LogVerdict.VIOLATED
    assert said.exit_code == 1, said.output
    assert f"{invariant} violated: {row['epoch']}-{row['seq']} " in said.output
    assert document["verdict"] == "violated"
    assert invariant in {found["invariant"] for found in document["violations"]}
    assert not any(name.startswith("I7") for name, *_ in named)


def test_verify_notes_a_clock_that_was_set_back_and_reports_no_violation(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    enqueue(writer, "a")
    writer.now_ms -= 3_600_001
    enqueue(writer, "b")
    auditlog.drain(mirror)

    said = command(database, "verify")
    document = json.loads(command(database, "verify", "--json").stdout)

    assert said.exit_code == 0, said.output
    assert f"  clock: {writer.epoch}-{writer.seq} " in said.output
    assert "Redis' clock went back by 3600000 ms" in said.output
    assert [each["by_ms"] for each in document["queues"][QUEUE]["set_back"]] == [3_600_000]


# The chain (I7).


@pytest.mark.parametrize("column, value", [("worker", "w-x"), ("at_ms", 1), ("task", None)])
def test_verify_names_the_batch_of_a_changed_event(
    log: Log, database: Database, column: str, value: Any
) -> None:
    row = log.events("succeeded")[5]
    log.change(row, **{column: value})
    batch = auditlog.one(
        database,
        "SELECT * FROM mirror_batch WHERE first_seq <= :s AND last_seq >= :s",
        s=row["seq"],
    )

    result = verify(database)

    (found,) = [v for v in result.violations if v.invariant == "I7"]
    assert found.says.startswith(f"batch {batch['batch']} (")
    assert found.says.endswith("its events are not those that were committed")
    assert command(database, "verify").exit_code == 1


@pytest.mark.parametrize(
    "lie",
    [
        "UPDATE claim_minute SET claims = claims + 1 WHERE outcome = 'succeeded'",
        "UPDATE claim_minute SET ran_max_ms = ran_max_ms + 1",
        "DELETE FROM claim_minute WHERE outcome = 'succeeded'",
        (
            "INSERT INTO claim_minute SELECT 'lost', minute_ms, queue, task, worker, 'X', 1, 0, 0, 0, 0 "
            "FROM claim_minute WHERE outcome = 'succeeded'"
        ),
    ],
    ids=["one more", "a longer run", "none", "a made up outcome"],
)
def test_verify_finds_minutes_with_a_wrong_count_of_claims(
    log: Log, database: Database, lie: str
) -> None:
    """Checks the counts per minute, from which everyday queries are answered."""
    log.run((lie, {}))

    result = verify(database)

    assert result.verdict is LogVerdict.VIOLATED
    found = result.queues[QUEUE].violations[0]
    assert (found.invariant, found.event) == ("I8", "claim_minute")
    assert "the minute counts" in found.says


def test_verify_finds_a_deleted_event_by_the_counts_of_events(log: Log, database: Database) -> None:
    row = log.events("discarded")[0]
    log.delete(row)

    said = " ".join(v.says for v in verify(database).violations)

    assert "events, " in said
    assert "were committed" in said
    assert "the cursor counts" in said


def test_verify_reports_a_deleted_batch(log: Log, database: Database) -> None:
    log.run(("DELETE FROM mirror_batch WHERE batch = 3", {}))

    found = verify(database).violations

    assert any("batch 3 is missing before it" in v.says for v in found)
    assert any("are in no batch" in v.says for v in found)


def test_verify_reports_an_event_after_the_cursor(log: Log, database: Database) -> None:
    last = log.events()[-1]
    log.insert({**last, "seq": last["seq"] + 1})

    (found,) = verify(database).violations

    assert "there are events after it" in found.says
    assert found.seq == last["seq"] + 1


def test_verify_finds_that_a_forged_chain_lacks_a_head_that_was_saved_earlier(
    log: Log, database: Database
) -> None:
    (kept,) = heads(database)
    assert verify(database, heads=[kept.sha256]).verdict is LogVerdict.HOLDS
    log.change(log.events("enqueued")[0], worker="w-x")
    log.chain_again()
    assert verify(database).verdict is LogVerdict.HOLDS

    said = command(database, "verify", "--head", kept.sha256)

    assert said.exit_code == 1
    assert f"head {kept.sha256} is in no chain" in said.output


def test_verify_finds_a_head_that_was_saved_earlier_in_a_longer_log(
    log: Log, writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    (kept,) = heads(database)
    writer.queue_event("paused")
    auditlog.drain(mirror)

    assert verify(database, heads=[kept.sha256]).verdict is LogVerdict.HOLDS


def test_the_head_command_prints_the_head_of_each_queue(log: Log, database: Database) -> None:
    (kept,) = heads(database)

    said = command(database, "head")
    document = json.loads(command(database, "head", "--json").stdout)

    assert said.stdout.split() == [QUEUE, f"{kept.epoch}-{kept.number}", kept.sha256]
    assert document == [kept._asdict()]


# The numbering, as mirror_epoch tells it.


@pytest.mark.parametrize(
    "lie",
    [
        "DELETE FROM mirror_epoch",
        "UPDATE mirror_epoch SET at_ms = at_ms + 1",
        "UPDATE mirror_epoch SET detail = '{}'",
        "UPDATE mirror_epoch SET kind = 'joined'",
        (
            "INSERT INTO mirror_epoch (queue, batch, epoch, seq, kind, at_ms, old_epoch, old_seq, missing) "
            "SELECT queue, batch, epoch, seq + 3, 'gap', at_ms, epoch, seq, 2 FROM mirror_epoch"
        ),
    ],
    ids=["none", "another time", "other words", "another kind", "a made up gap"],
)
def test_verify_finds_rows_of_epochs_that_have_no_event_despite_a_forged_chain(
    log: Log, database: Database, lie: str
) -> None:
    log.run((lie, {}))
    assert {v.invariant for v in verify(database).violations} == {"I5", "I7"}
    log.chain_again()

    found = verify(database).violations

    assert {(v.invariant, v.event) for v in found} == {("I5", "mirror_epoch")}
    assert all(v.says.startswith("mirror_epoch ") for v in found)


# What cannot be told: exit status 2.


def test_verify_uses_the_singular_for_one_event_entry_batch_and_job(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    """Checks that verify does not print "1 events in 1 entries and 1 batches"."""
    auditlog.drain(mirror)
    began = command(database, "verify").output
    enqueue(writer, "a")
    auditlog.drain(mirror)
    alive = command(database, "verify").output

    assert "  holds: 1 event in 1 entry and 1 batch, 0 jobs in Redis\n" in began
    assert "  holds: 2 events in 2 entries and 2 batches, 1 job in Redis\n" in alive


def test_the_verdict_is_unknown_without_events_in_the_log(
    mirror: Mirror, database: Database
) -> None:
    mirror.attach()

    assert command(database, "verify").exit_code == 2
    assert command(database, "verify", "--queue", "nobody").exit_code == 2


def test_the_verdict_is_unknown_without_a_database(tmp_path: Any) -> None:
    missing = audit("verify", "--audit", str(tmp_path / "none.db"))
    nothing = audit("verify")

    assert (missing.exit_code, nothing.exit_code) == (2, 2)


def test_the_verdict_of_a_recorded_gap_is_unknown(
    log: Log, writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    writer.queue_event("paused")
    auditlog.drain(mirror)
    writer.queue_event("resumed")
    writer.queue_event("paused")
    writer.source.redis.xdel(writer.keys("outbox"), f"{writer.epoch}-{writer.seq - 1}")
    auditlog.drain(mirror)

    said = command(database, "verify")

    assert said.exit_code == 2, said.output
    assert "are missing, as recorded" in said.output
    assert said.output.splitlines()[-1] == "unknown"


def test_the_verdict_of_an_entry_in_quarantine_is_unknown(
    log: Log, writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    writer.raw({"type": "claimed", "by": "w-1", "jobs": "{"})
    auditlog.drain(mirror)

    said = command(database, "verify", "--json")

    assert said.exit_code == 2
    (note,) = json.loads(said.stdout)["queues"][QUEUE]["unknown"][:1]
    assert note["number"] == f"{writer.epoch}-{writer.seq}"


def test_verify_counts_orphaned_events_and_does_not_judge_them(
    log: Log, writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    known = f"{writer.epoch}-{writer.seq}"
    forgotten = [
        writer.jobs("enqueued", ["lost", 1, None, "send", "normal", 3, 3, "d"]),
        writer.jobs("claimed", ["lost", 1]),
    ]
    auditlog.drain(mirror)
    writer.source.redis.xdel(writer.keys("outbox"), *forgotten)
    writer.begin(writer.epoch + 1000, "replid_changed", known)
    writer.jobs("enqueued", ["lost", 1, None, "send", "normal", 3, 3, "d"])
    auditlog.drain(mirror)

    result = verify(database)

    assert result.violations == []
    assert (result.verdict, result.queues[QUEUE].orphans) == (LogVerdict.HOLDS, 2)
    (loss,) = result.queues[QUEUE].losses
    assert (loss.orphaned, str(loss.after)) == (2, forgotten[1])
    assert "2 events are orphaned" in command(database, "verify").output


def test_verify_judges_only_events_since_the_given_time(log: Log, database: Database) -> None:
    row = illegal_step(log)
    log.chain_again()

    def status(since: str) -> int:
        return command(database, "verify", "--since", since).exit_code

    assert status(str(row["at_ms"])) == 1
    assert status(str(row["at_ms"] + 1)) == 0
    assert status("2001-01-01 10:00") == 1
    assert status("2101-01-01T10:00+01:00") == 0
    assert status("yesterday") == 2


def test_each_queue_has_its_own_verdict(
    log: Log, make_mirror: Callable[..., Mirror], writer: StreamWriter, database: Database
) -> None:
    other = StreamWriter(writer.source, "other")
    other.jobs("claimed", ["ghost", 1])
    auditlog.drain(make_mirror("other"))

    result = verify(database)

    assert {name: str(q.verdict) for name, q in result.queues.items()} == {
        QUEUE: "holds", "other": "violated",
    }  # fmt: skip
    assert verify(database, QUEUE).verdict is LogVerdict.HOLDS
    assert command(database, "verify", "--queue", "other").exit_code == 1
