"""Breakers and operators' pauses after a baseline of the log, after a restore of lost jobs, and in the proof."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from rq_core.model.limits.limit import FOREVER_MS
from rq_core.protocol.calls import claims
from sql_audit.proof.result import LogVerdict
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs
from tests.audit.epochs.forgetting import START_MS, timed_client
from tests.audit.restore.jobs import claim, complete, job
from tests.kit.agreement import assert_agree, drain
from tests.kit.clock import Clock
from tests.kit.fleet import QUEUE
from tests.kit.servers import RedisServer

FAMILY: Final = "ask.host@60s:failures"
SCOPE: Final = f"{FAMILY}=h"
COOLDOWN: Final = 30_000


class Fragile:
    """A queue on the test's clock, with jobs of one host."""

    def __init__(self, server: RedisServer, database: Database) -> None:
        self.server, self.database = server, database
        self.client = timed_client(server)
        self.control = server.client()
        self.clock = Clock(self.control, START_MS)
        self.limit()

    def close(self) -> None:
        self.client.close()
        self.control.close()

    def limit(self) -> None:
        self.client.run(self.client.calls.caps.set(QUEUE, [(FAMILY, f"2/60000ms/{COOLDOWN}", -1)]))

    def enqueue(self, *ids: str) -> None:
        made = [job(job_id, lane=f"2+{SCOPE}") for job_id in ids]
        self.client.run(self.client.calls.enqueue.many(made))

    def fail(self, held: dict[str, str], delay_ms: int = 0) -> None:
        records = [(i, fence, "retry", delay_ms, "failed", "{}") for i, fence in held.items()]
        self.client.run(claims.fail(QUEUE, "w-1", records))

    def begin(self, kind: str) -> None:
        """Pause the scope by two failures or by an operator. With ``failure``, let only one job fail: the next failure
        pauses the scope."""
        self.enqueue("a", "b", "c")
        if kind == "operator":
            pauses = self.client.calls.pauses
            self.client.run(pauses.pause(QUEUE, SCOPE, by="ada", why="ill"))
        else:
            self.fail(claim(self.client, 2 if kind == "paused" else 1), 1_000)
        drain(self.client, self.database)

    def resume(self) -> None:
        self.client.run(self.client.calls.pauses.resume(QUEUE, SCOPE, by="ada", why="well"))

    def assert_kept(self, kind: str) -> None:
        """Assert that the scope is still as ``begin`` has left it: paused, or with one failure."""
        if kind == "failure":
            self.fail(claim(self.client, 1), 1_000)
            assert claim(self.client, 3) == {}
            return
        assert claim(self.client, 3) == {}
        self.clock.advance(COOLDOWN)
        if kind == "operator":
            assert claim(self.client, 3) == {}
            self.resume()
            assert len(claim(self.client, 3)) == 3
            return
        probe = claim(self.client, 3)
        assert len(probe) == 1
        complete(self.client, probe)
        assert len(claim(self.client, 3)) == 2


@pytest.fixture
def fragile(start_redis: Callable[..., RedisServer], database: Database) -> Iterator[Fragile]:
    made = Fragile(start_redis(), database)
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["paused", "failure", "operator"])
def test_a_restore_after_a_total_loss_keeps_pauses_and_failures_of_a_scope(
    fragile: Fragile, database: Database, kind: str
) -> None:
    fragile.begin(kind)
    now_ms = fragile.clock.now_ms
    fragile.control.flushall()
    fragile.clock.set(now_ms)
    drain(fragile.client, database)

    done = restore_jobs(fragile.client, database, QUEUE, by="ada")

    assert (done.restored, done.scopes) == (3, [SCOPE])
    fragile.limit()
    fragile.clock.advance(1_000 if kind == "failure" else 0)
    fragile.assert_kept(kind)
    assert_agree(fragile.client, database, LogVerdict.HOLDS)


@pytest.mark.parametrize("kind", ["paused", "operator"])
def test_a_baseline_keeps_the_pause_of_a_scope(
    fragile: Fragile, database: Database, kind: str
) -> None:
    fragile.begin(kind)
    fragile.control.delete(f"rqc:{{{QUEUE}}}:outbox")
    drain(fragile.client, database)

    fragile.assert_kept(kind)
    assert_agree(fragile.client, database, LogVerdict.HOLDS)


@pytest.mark.parametrize("number", range(2))
def test_verify_proves_the_log_of_random_jobs_under_a_breaker(
    fragile: Fragile, database: Database, number: int
) -> None:
    rng = random.Random(number)
    held: dict[str, str] = {}
    for n in range(150):
        act = rng.choice(("enqueue", "claim", "claim", "fail", "fail", "succeed", "pause", "time"))
        if act == "enqueue":
            fragile.enqueue(f"j-{n}")
        elif act == "claim":
            held |= claim(fragile.client, 2)
        elif act == "pause":
            until_ms = rng.choice((500, FOREVER_MS))
            pauses = fragile.client.calls.pauses
            fragile.client.run(pauses.pause(QUEUE, SCOPE, for_ms=until_ms, by="ada"))
            if until_ms == FOREVER_MS:
                fragile.resume()
        elif act == "time":
            fragile.clock.advance(rng.choice((1, 900, COOLDOWN // 2)))
        elif held:
            chosen = rng.choice(sorted(held))
            one = {chosen: held.pop(chosen)}
            (fragile.fail if act == "fail" else lambda h: complete(fragile.client, h))(one)
    claim(fragile.client, 1)  # The doctor goes by the time of the last claim.
    assert_agree(fragile.client, database, LogVerdict.HOLDS)
