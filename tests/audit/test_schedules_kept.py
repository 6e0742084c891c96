"""Schedules while operators change the queue's log: the log is pruned, attached late, or switched off and on.

One test deletes the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rq_core.connections.client import Client
from rq_core.model.recurrence import recurrence
from rq_core.protocol.calls.admin import DELETED, WAITS
from rq_core.protocol.calls.schedules import Declaration, Instant, tick
from rq_core.worker.ticker import instants_of
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.queries.schedules import schedule_history
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.survey import survey
from sql_audit.upkeep.switch_off import switch_off
from tests.audit.pruning import prune_at
from tests.kit import auditlog
from tests.kit.seed import Seed

DAY = 86_400_000


@pytest.fixture
def seed(valkey_url: str) -> Iterator[Seed]:
    with Seed(valkey_url) as made:
        yield made


def put(seed: Seed, name: str = "beat", **rule: Any) -> None:
    made = Declaration.of(seed.job("-", task="ping"), recurrence(name, **(rule or {"every": 60})))
    seed.client.run(seed.calls.schedules.put("q", [made]))


def go_on(seed: Seed, times: int = 3) -> None:
    """Advance the clock by a minute, ``times`` times, and fire the due schedules each time. Run their jobs every second
    time."""
    for number in range(times):
        seed.advance(60_000)
        answer = seed.client.run(tick("q", "w-1"))
        while answer.due:
            instants = instants_of(answer.due, answer.now_ms)
            answer = seed.client.run(tick("q", "w-1", instants))
        if number % 2 == 0:
            for job in seed.claim(10).jobs:
                seed.complete(job)


def mirror_of(client: Client, database: Database) -> Mirror:
    return Mirror(Outbox(client), database, "q", limits=BatchLimits(events=10))


def assert_agree(client: Client, database: Database) -> None:
    result = verify(database)
    assert [] == result.violations
    assert LogVerdict.HOLDS is result.verdict, result.queues["q"].notes
    assert ([], []) == compare(client, database, "q")


@pytest.mark.slow
def test_a_prune_removes_the_instants_of_pruned_jobs(
    seed: Seed, client: Client, database: Database
) -> None:
    mirror = mirror_of(client, database)
    auditlog.drain(mirror)
    put(seed)
    go_on(seed, 5)
    seed.client.run(seed.calls.schedules.change("q", "beat", "pause"))
    auditlog.drain(mirror)
    seed.advance(100 * DAY)
    seed.client.run(seed.calls.schedules.change("q", "beat", "resume"))
    go_on(seed, 3)
    auditlog.drain(mirror)
    before = schedule_history(database.readers, "q", "beat", 20)

    prune_at(database, seed.now)

    after = schedule_history(database.readers, "q", "beat", 20)
    assert len(after.ticks) < len(before.ticks)
    assert before.ticks[-3:] == after.ticks[-3:]
    assert 3 == len(after.changes)
    assert after.pruned is not None
    assert_agree(client, database)
    assert [] == survey(client, database, "q").schedules


def test_a_log_that_is_attached_late_has_the_instants_from_then_on(
    seed: Seed, client: Client, database: Database
) -> None:
    put(seed)
    go_on(seed)
    mirror = mirror_of(client, database)
    auditlog.drain(mirror)
    go_on(seed)
    put(seed, "other")
    go_on(seed)
    auditlog.drain(mirror)

    assert_agree(client, database)
    assert [] == survey(client, database, "q").schedules
    assert schedule_history(database.readers, "q", "beat", 20).is_known


@pytest.mark.parametrize("clock_back_ms", [0, 1_000])
def test_a_comparison_uses_the_last_logged_instant_of_a_schedule_even_if_the_clock_went_back(
    seed: Seed, client: Client, database: Database, clock_back_ms: int
) -> None:
    """Checks instants in the same millisecond, and instants after the clock of Redis was set back."""
    put(seed)
    seed.advance(90_000)
    for following in (1, 1, 1, 10**9):
        stored = seed.client.run(seed.calls.schedules.stored("q"))["beat"]
        made = Instant("beat", 1, stored.next_ms, stored.next_ms, stored.next_ms + following, 0)
        assert seed.client.run(tick("q", "w-1", [made])).told["beat"].outcome != "early"
        seed.advance(-clock_back_ms)
    auditlog.drain(mirror_of(client, database))

    assert ([], []) == compare(client, database, "q")


@pytest.mark.slow
def test_schedules_fire_while_the_log_is_off_and_after_it_is_switched_on_again(
    seed: Seed, client: Client, database: Database
) -> None:
    auditlog.drain(mirror_of(client, database))
    put(seed)
    put(seed, "set", every=90)
    go_on(seed)
    auditlog.drain(mirror_of(client, database))
    switch_off(client, database, "q")
    off = seed.client.run(seed.calls.schedules.stored("q"))["beat"]
    go_on(seed)
    put(seed, "set")
    put(seed, every=120)
    assert off.next_ms < seed.client.run(seed.calls.schedules.stored("q"))["beat"].next_ms
    auditlog.drain(mirror_of(client, database))
    go_on(seed)
    auditlog.drain(mirror_of(client, database))

    result = verify(database)
    assert [] == result.violations
    assert ([], []) == compare(client, database, "q")
    # What was set meanwhile is not in the log, and nothing that Redis lost.
    assert [] == survey(client, database, "q").schedules


@pytest.mark.slow
def test_a_deleted_queue_keeps_no_schedule(seed: Seed, client: Client, database: Database) -> None:
    mirror = mirror_of(client, database)
    auditlog.drain(mirror)
    put(seed)
    go_on(seed, 1)
    auditlog.drain(mirror)
    assert WAITS == seed.client.run(seed.calls.deletion.delete("q", by="ada"))
    auditlog.drain(mirror)
    assert DELETED == seed.client.run(seed.calls.deletion.delete("q", by="ada"))
    assert {} == seed.snapshot()["schedules"]

    put(seed, every=120)
    auditlog.drain(mirror)

    assert_agree(client, database)
    found = schedule_history(database.readers, "q", "beat", 5)
    assert [1, 1] == [each.version for each in found.changes]
