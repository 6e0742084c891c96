"""Schedules in the log. An event names the next instant, and the next event must have this instant (I15).

Verify reports every lie.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rq_core.connections.client import Client
from rq_core.model.recurrence import recurrence
from rq_core.protocol.calls.schedules import Declaration, tick
from rq_core.worker.ticker import instants_of
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.replay.replay import Replay
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.queries.schedules import schedule_history
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import job_event
from tests.kit import auditlog
from tests.kit.liar import forge_chain, lying
from tests.kit.seed import Seed
from tests.kit.story import MemoryWriter

STEP = 10_000
RULE = '{"every_ms":10000,"overlap":"skip","catch_up":"latest"}'


@pytest.fixture
def log() -> MemoryWriter:
    return MemoryWriter()


class Schedule:
    """The events of one schedule, which a test appends one by one."""

    def __init__(self, log: MemoryWriter, name: str = "beat", *, is_logged: bool = True) -> None:
        self.log = log
        self.name = name
        self.version = 1
        self.next = log.now_ms + STEP
        if is_logged:
            self.put(None)

    def put(
        self, old: str | None = RULE, state: str = "on", source: str = "code", **job: Any
    ) -> None:
        said = (self.name, state, old, RULE, self.version, self.next, source, *job.values())
        self.log.queue_event("schedule_changed", *said)

    def enqueue(self, at: int) -> None:
        job_id = f"tick-{self.name}-{at}"
        self.log.jobs("enqueued", [job_id, 1, None, "ping", "normal", 3, 3, "d"])

    def told(self, outcome: str = "fired", **lies: Any) -> None:
        """Append the event of the next instant, with ``lies`` in place of its true fields.

        ``passed`` is the number of instants that are skipped before this instant.
        """
        at = self.next + STEP * lies.pop("passed", 0)
        self.log.now_ms = max(self.log.now_ms, at + 5)
        if lies.pop("job", outcome in ("fired", "run")):
            self.enqueue(at)
        honest = {
            "id": f"tick-{self.name}-{at}", "name": self.name, "version": self.version, "nominal": at,
            "due": at, "next": at + STEP, "outcome": outcome, "missed": 0, "held_by": None,
        }  # fmt: skip
        said = honest | lies
        self.log.jobs("ticked", [*said.values()])
        self.next = said["next"]


def violations(log: MemoryWriter) -> list[tuple[str, str]]:
    found = Replay(log.queue)
    found.feed(log.rows)
    found.finish()
    return [(each.invariant, each.says) for each in found.violations]


def test_replay_accepts_an_honest_schedule(log: MemoryWriter) -> None:
    schedule = Schedule(log)
    schedule.told()
    schedule.told("skipped", held_by="tick-beat-1")
    schedule.told(passed=3, missed=3)
    schedule.told("missed", missed=1)
    schedule.told("missed", missed=4, next=schedule.next + 5 * STEP)
    schedule.told("duplicate")
    schedule.version += 1
    schedule.put(state="paused")
    schedule.version += 1
    schedule.next = log.now_ms + STEP
    schedule.put()
    schedule.told()

    assert [] == violations(log)


def test_replay_accepts_a_requested_run_that_changes_no_instant(log: MemoryWriter) -> None:
    schedule = Schedule(log)
    before = schedule.next
    at = log.now_ms + 3
    schedule.enqueue(at)
    log.now_ms = at
    log.jobs("ticked", [f"tick-beat-{at}", "beat", 1, at, at, before, "run", 0])
    schedule.told()

    assert [] == violations(log)


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (lambda s: s.told(passed=1), "with 0 passed over:"),
        (lambda s: s.told(missed=1), "with 1 passed over:"),
        (lambda s: s.told("skipped", passed=-1), "was next"),
        (lambda s: s.told(next=s.next), "says no later instant"),
        (lambda s: s.told(next=None), "says no later instant"),
        (lambda s: s.told(version=2), "is of version 2 of its schedule, which has 1"),
        (lambda s: s.told(due=s.next - 1), "before it is due"),
        (lambda s: s.told(due=s.next + 1_000), "ms before it is due"),
        (lambda s: s.told(job=False), "its job was not enqueued"),
        (lambda s: s.told("skipped", job=True), "is skipped, and its job was enqueued"),
        (lambda s: s.told("missed", missed=0), "is missed, and is not counted"),
        (lambda s: s.told(id=f"tick-other-{s.next}"), "names another job"),
        (lambda s: s.told(name="other", id=f"tick-other-{s.next}", job=False), "its job was not enqueued"),
        (lambda s: (s.told(), setattr(s, "next", s.next - STEP), s.told("skipped")), "was next"),
        (lambda s: (setattr(s, "version", 2), s.put(state="paused"), s.told("skipped")), "is not on"),
        (lambda s: s.told("fired?", job=True), "has the unknown outcome fired?"),
        (lambda s: s.told("run", next=s.next + 1), "says another next instant than schedule beat has"),
        (lambda s: s.told("not_run", version=2), "is of version 2 of its schedule, which has 1"),
        (lambda s: s.told("not_run", missed=2), "passes over 2 instants"),
        (lambda s: (setattr(s, "version", 2), s.put(state="paused?")), "has the unknown state paused?"),
        (lambda s: (setattr(s, "version", 2), s.put(source="other")), "comes from other"),
        (lambda s: (setattr(s, "version", 2), s.put(pack="[1]", digest="a")), "has another digest than its job"),
        (lambda s: s.put(), "has version 1 already"),
        (lambda s: (setattr(s, "version", 4), s.put()), "skips versions 2 to 3"),
        (lambda s: (setattr(s, "version", 2), s.put('{"every_ms":7}')), "changes a rule that"),
        (lambda s: (setattr(s, "version", 2), setattr(s, "next", s.log.now_ms), s.put()), "has passed"),
    ],
)  # fmt: skip
def test_replay_reports_a_false_field_of_an_instant(
    log: MemoryWriter, lie: Callable[[Schedule], Any], said: str
) -> None:
    schedule = Schedule(log)
    schedule.told()

    lie(schedule)

    found = violations(log)
    assert {"I15"} == {invariant for invariant, _ in found}
    assert any(said in says for _, says in found), found


def test_replay_reports_a_missing_instant(log: MemoryWriter) -> None:
    schedule = Schedule(log)
    schedule.told()
    schedule.next += STEP
    schedule.told()

    assert ["I15"] == [invariant for invariant, _ in violations(log)]


def test_replay_accepts_any_first_event_of_a_schedule_in_the_log(log: MemoryWriter) -> None:
    schedule = Schedule(log, is_logged=False)
    schedule.version = 7
    schedule.told("skipped", version=7)
    schedule.told(version=7)
    assert [] == violations(log)

    schedule.told(version=8)
    assert ["I15"] == [invariant for invariant, _ in violations(log)]


def real_log(seed: Seed, client: Client, database: Database) -> None:
    """Make a log in which a schedule is served, paused and resumed."""
    mirror = Mirror(Outbox(client), database, "q", limits=BatchLimits(events=100))
    auditlog.drain(mirror)
    job = Declaration.of(seed.job("-", task="ping"), recurrence("beat", every=10))
    seed.client.run(seed.calls.schedules.put("q", [job]))
    for number in range(6):
        seed.advance(10_000)
        answer = seed.client.run(tick("q", "w-1"))
        while answer.due:
            instants = instants_of(answer.due, answer.now_ms)
            answer = seed.client.run(tick("q", "w-1", instants))
        seed.complete(*seed.claim().jobs)
        if number == 3:
            seed.client.run(seed.calls.schedules.change("q", "beat", "pause"))
            seed.client.run(seed.calls.schedules.change("q", "beat", "resume"))
    auditlog.drain(mirror)


def edited(row: dict[str, Any], **said: Any) -> dict[str, Any]:
    return {
        **row,
        "detail": json.dumps({**json.loads(row["detail"]), **said}, separators=(",", ":")),
    }


Lying = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def in_detail(which: Callable[[list[dict[str, Any]]], int], **said: Any) -> Lying:
    return lambda rows: [
        edited(row, **said) if at == which(rows) else row for at, row in enumerate(rows)
    ]


def nth(kind: str, number: int) -> Callable[[list[dict[str, Any]]], int]:
    return lambda rows: [at for at, row in enumerate(rows) if row["type"] == kind][number]


def without(kind: str, number: int) -> Lying:
    """Remove an entry, and lower the numbers of the later entries by one."""

    def lie(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        gone = nth(kind, number)(rows)
        after = [{**row, "seq": row["seq"] - 1} for row in rows[gone + 1 :]]
        return [*rows[:gone], *after]

    return lie


def twice(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Insert the event of an instant a second time, right after the first."""
    at = nth("ticked", 1)(rows)
    after = [{**row, "seq": row["seq"] + 1} for row in rows[at:]]
    return [*rows[: at + 1], *after]


LIES: dict[str, Lying] = {
    "another next": in_detail(nth("ticked", 1), next_ms=1_999_999_999_999),
    "another outcome": in_detail(nth("ticked", 1), outcome="missed"),
    "another version": in_detail(nth("ticked", 1), version=5),
    "another instant": in_detail(nth("ticked", 1), nominal_ms=1),
    "due later": in_detail(nth("ticked", 1), due_ms=1_999_999_999_999),
    "one is missing": without("ticked", 1),
    "one comes twice": twice,
    "fired without its job": without("enqueued", 1),
    "another rule before": in_detail(nth("schedule_changed", 1), old='{"every_ms":7}'),
    "a change of another version": in_detail(nth("schedule_changed", 1), version=4),
    "another next of a change": in_detail(nth("schedule_changed", 2), next_ms=1_999_999_999_999),
    "a change that is missing": without("schedule_changed", 1),
    "a pause that was none": in_detail(nth("schedule_changed", 2), state="paused"),
}


@pytest.mark.parametrize("name", LIES)
def test_verify_reports_a_false_schedule_event_in_real_sql_despite_a_forged_chain(
    name: str, valkey_url: str, client: Client, database: Database
) -> None:
    with Seed(valkey_url) as seed:
        real_log(seed, client, database)
    honest = verify(database)
    assert LogVerdict.HOLDS is honest.verdict, honest.violations
    rows = auditlog.events(database, "q")
    with lying(database) as connection:
        connection.execute(job_event.delete())
        connection.execute(job_event.insert(), LIES[name](rows))
    assert LogVerdict.VIOLATED is verify(database).verdict

    forge_chain(database)

    found = verify(database)
    assert LogVerdict.VIOLATED is found.verdict
    assert "I15" in {each.invariant for each in found.violations}, found.violations


@pytest.mark.slow
def test_verify_proves_the_schedule_events_of_the_real_scripts(
    valkey_url: str, client: Client, database: Database
) -> None:
    mirror = Mirror(Outbox(client), database, "q", limits=BatchLimits(events=100))
    with Seed(valkey_url) as seed:
        rules = [
            recurrence("a", every=10),
            recurrence("b-1", every=7, overlap="queue", spread=5),
            recurrence("c", every=60, catch_up="skip", grace=1),
        ]
        made = [Declaration.of(seed.job("-", task="ping"), rule) for rule in rules]
        seed.client.run(seed.client.calls.schedules.put("q", made))
        auditlog.drain(mirror)
        for number in range(30):
            seed.live(4_000)
            answer = seed.client.run(tick("q", "w-1"))
            while answer.due:
                instants = instants_of(answer.due, answer.now_ms)
                answer = seed.client.run(tick("q", "w-1", instants))
            if number % 4 == 0:
                seed.complete(*seed.claim().jobs)
        seed.client.run(seed.client.calls.schedules.run("q", "a"))
        seed.client.run(seed.client.calls.schedules.change("q", "a", "pause"))
        seed.client.run(seed.client.calls.schedules.change("q", "c", "remove"))
    auditlog.drain(mirror)

    result = verify(database)
    rows = auditlog.rows(
        database,
        "SELECT * FROM schedule_tick WHERE queue = 'q' AND name = 'b-1' ORDER BY nominal_ms",
    )

    assert [] == result.violations
    assert LogVerdict.HOLDS is result.verdict, result.queues["q"].notes
    assert ([], []) == compare(client, database, "q")
    assert 10 < len(rows)
    assert {"fired", "skipped"} <= {row["outcome"] for row in rows}
    first = rows[0]
    assert f"tick-b-1-{first['nominal_ms']}" == first["job_id"]
    assert first["at_ms"] - first["due_ms"] == first["late_ms"] >= 0
    assert rules[1].shift_ms == first["due_ms"] - first["nominal_ms"]
    assert all(row["held_by"] for row in rows if row["outcome"] == "skipped")
    told = schedule_history(database.readers, "q", "b-1", 5)
    assert [row["nominal_ms"] for row in rows[-5:]] == [each.nominal_ms for each in told.ticks]
    assert all(each.says for each in told.ticks)
    counted = auditlog.rows(database, "SELECT COUNT(*) AS n FROM schedule_tick WHERE name = 'c'")
    assert counted[0]["n"] >= 1
