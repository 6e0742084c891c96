"""The doctor never reports a true record of an ended job as false. The queue is busy, and its log may lack events."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from rq_core.connections.client import Client
from rq_core.doctor import diagnose
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs
from sql_audit.upkeep.switch_off import switch_off
from tests.kit import auditlog
from tests.kit.fleet import QUEUE, Fleet

OUTBOX = f"rqc:{{{QUEUE}}}:outbox"


class Missing:
    """Ways in which the log loses events, each as a method. The method `nothing` leaves the log complete."""

    def __init__(self, client: Client, database: Database, fleet: Fleet) -> None:
        self.client = client
        self.database = database
        self.fleet = fleet

    def ask(self, *words: Any) -> Any:
        return self.client.run(self.client.calls.delivery.ask([[*words]]))[0]

    def drain(self) -> None:
        limits = BatchLimits(events=50)
        auditlog.drain(Mirror(Outbox(self.client), self.database, QUEUE, limits=limits))

    def nothing(self) -> None:
        self.drain()

    def the_outbox(self) -> None:
        self.ask("DEL", OUTBOX)
        self.fleet.run(1)
        self.drain()

    def some_entries(self) -> None:
        entries = [at for at, _ in self.ask("XRANGE", OUTBOX, "-", "+")]
        if len(entries) > 3:
            self.ask("XDEL", OUTBOX, *entries[-3:-1])

    def the_oldest_entries(self) -> None:
        self.ask("XTRIM", OUTBOX, "MAXLEN", 2)

    def what_happened_while_it_was_off(self) -> None:
        switch_off(self.client, self.database, QUEUE)
        self.fleet.run(8)
        self.the_oldest_entries()
        self.drain()

    def all_that_redis_had(self) -> None:
        self.ask("FLUSHALL")
        self.fleet.held.clear()
        self.fleet.run(3)
        self.drain()
        restore_jobs(self.client, self.database, QUEUE, by="ada")


WAYS: list[Callable[[Missing], None]] = [
    Missing.nothing, Missing.nothing, Missing.the_outbox, Missing.some_entries, Missing.the_oldest_entries,
    Missing.what_happened_while_it_was_off, Missing.all_that_redis_had,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("ways", [WAYS[:1], WAYS], ids=["whole", "with-gaps"])
@pytest.mark.parametrize("seed", range(4))
def test_correct_results_names_and_ids_are_never_reported_as_differences(
    client: Client, database: Database, seed: int, ways: list[Callable[[Missing], None]]
) -> None:
    """Checks jobs with results, names and ids in a random order that depends only on the seed."""
    fleet, dice = Fleet(client, seed, ties=True), random.Random(seed)
    missing = Missing(client, database, fleet)
    fleet.run(5)
    missing.drain()
    compared = kept = 0
    for _ in range(20):
        fleet.run(dice.randrange(1, 25))
        if dice.random() < 0.5:
            dice.choice(ways)(missing)
        found, notes = compare(client, database, QUEUE)
        looked = diagnose(client, QUEUE)

        assert [v.says for v in found if v.invariant in ("I13", "I14")] == []
        said = [f.says for f in looked]
        assert [s for s in said if s.startswith("id ") or "it is held until" in s] == []
        if not notes:
            compared += 1
            kept += len(client.run(client.calls.reads.snapshot(QUEUE))["results"])
    assert compared >= 5
    assert kept >= 50
