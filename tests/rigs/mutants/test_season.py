"""A long generated history of a queue (a season), which `audit verify` proves. Mutants of the scripts make it fail."""

from __future__ import annotations

from typing import Any

import redis

from rq_core.connections.client import Client
from rq_core.protocol.calls import claims
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.operations import Operations
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.clock import Clock, timed
from tests.kit.command import audit
from tests.kit.fleet import QUEUE, Fleet
from tests.kit.schemas import lay_schema

START_MS = 1_800_000_000_000


class Season(Fleet):
    """Workers over a long time. Leases expire, and workers settle claims that they no longer hold."""

    def __init__(self, client: Client, clock: Clock, seed: int) -> None:
        super().__init__(client, seed)
        self.clock = clock
        self.settled: list[tuple[str, str]] = []

    def complete(self) -> None:
        if held := self._take():
            self.settled.append(held)
            self.client.run(claims.complete(QUEUE, "w-1", [held]))

    def settle_again(self) -> None:
        """Settle a claim that was settled before."""
        if self.settled:
            held = self.random.choice(self.settled)
            self.client.run(claims.complete(QUEUE, "w-1", [held]))

    def pass_time(self) -> None:
        self.clock.advance(self.random.choice((10, 200, 3_000)))

    def lose_workers(self) -> None:
        """Let all leases expire. The lost workers come back later and settle their claims."""
        lost = self.held.copy()
        self.held.clear()
        for _ in range(4):
            self.clock.advance(4_000)
            self.client.run(claims.claim(QUEUE, "w-2", 0))
        self.claim()
        for held in lost:
            self.client.run(claims.complete(QUEUE, "w-1", [held]))

    def season(self, steps: int) -> None:
        for step in range(steps):
            self.run(5)
            self.pass_time()
            self.settle_again()
            if step % 10 == 9:
                self.lose_workers()


def test_verify_proves_the_generated_log_of_a_queue_over_a_season(
    valkey_url: str, sqlite_url: str
) -> None:
    """Checks SQL alone, and then SQL compared with Redis. A failure prints the violation."""
    database = Database(sqlite_url)
    lay_schema(database)
    control = redis.Redis.from_url(valkey_url)
    operations = Operations(Delivery(url=valkey_url, scripts=timed))
    with Client(valkey_url, calls=operations) as client:
        season = Season(client, Clock(control, START_MS), seed=11)
        client.run(client.calls.delivery.handshake(QUEUE))
        client.run(client.calls.admin.configure(QUEUE, {"lease_ms": 12_000}))
        season.set_cap("task=send", "3")
        season.set_cap("tenant", "2")
        mirror = Mirror(Outbox(client), database, QUEUE, limits=BatchLimits(events=40))
        for _ in range(3):
            season.season(20)
            auditlog.drain(mirror)
        season.run(10)

        command = ["verify", "--audit", sqlite_url, "--redis", valkey_url]
        proven = audit(*command)
        types = types_of(database)
    control.close()
    database.close()

    assert proven.output.splitlines()[-1] == "holds", proven.output
    assert types >= {"claimed", "succeeded", "retried", "died", "rolled_back", "lease_expired",
                     "promoted", "cancelled", "cap_changed", "settlement_refused"}  # fmt: skip


def types_of(database: Database) -> set[Any]:
    return {row["type"] for row in auditlog.rows(database, "SELECT DISTINCT type FROM job_event")}
