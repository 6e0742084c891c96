"""Debts and pauses of rates that count a unit. They stay in force after the clock was set back, after a baseline of the
log, and after a restore of lost jobs. `audit verify` proves the log each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest
import redis

from rq_core.connections.client import Client
from rq_core.model.job import ties_of
from rq_core.protocol.calls import claims
from sql_audit.proof.result import LogVerdict
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs
from tests.audit.epochs.forgetting import START_MS, timed_client
from tests.audit.restore.jobs import claim, complete, job, lines
from tests.kit import auditlog
from tests.kit.agreement import assert_agree, drain
from tests.kit.clock import Clock
from tests.kit.fleet import QUEUE
from tests.kit.servers import RedisServer

FAMILY: Final = "ask@1s:tokens"
SCOPE: Final = f"{FAMILY}=gpt"
KINDS: Final = ("debt", "pause")
PAUSE_MS: Final = 5_000
OPENS_MS: Final = {"debt": 550, "pause": PAUSE_MS + 40}
"""Milliseconds until a job that costs 5 tokens begins. The debt is 50 tokens, and 10 tokens come back in 100 ms. At the
end of a pause, one token is free."""


class Paid:
    """A queue on the test's clock. Its first job takes more tokens than are free, or pauses its scope."""

    def __init__(self, server: RedisServer, database: Database) -> None:
        self.server, self.database = server, database
        self.client: Client = timed_client(server)
        self.control: redis.Redis = server.client()
        self.clock = Clock(self.control, START_MS)

    def close(self) -> None:
        self.client.close()
        self.control.close()

    def limit(self, text: str = "100/1000ms/10") -> None:
        self.client.run(self.client.calls.caps.set(QUEUE, [(FAMILY, text, -1)]))

    def enqueue(self, job_id: str, cost: int) -> None:
        made = job(job_id, lane=f"2+{SCOPE}", ties=ties_of(cost=f"tokens:{cost}"))
        self.client.run(self.client.calls.enqueue.many([made]))

    def spend(self, held: dict[str, str], told: str = "", pauses: str = "") -> None:
        records = [(job_id, fence, told, pauses) for job_id, fence in held.items()]
        assert self.client.run(claims.spend(QUEUE, "w-1", records)) == {}

    def begin(self, kind: str) -> None:
        """Let the job ``a`` take 60 tokens, or pause its scope. The job ``b`` then waits for the rate."""
        self.limit()
        self.enqueue("a", 60 if kind == "debt" else 5)
        self.enqueue("b", 5)
        held = claim(self.client, 1)
        assert list(held) == ["a"]
        if kind == "pause":
            self.spend(held, pauses=f"{SCOPE}|{PAUSE_MS}")
        complete(self.client, held)
        drain(self.client, self.database)

    def claimed(self) -> list[str]:
        """Claim what may be claimed, complete it, and return the jobs."""
        held = claim(self.client, 5)
        complete(self.client, held)
        return list(held)

    def assert_opens_after(self, ms: int) -> None:
        """Assert that ``b`` begins after this time, and not a millisecond earlier."""
        assert self.claimed() == []
        self.clock.advance(ms - 1)
        assert self.claimed() == []
        self.clock.advance(1)
        assert self.claimed()[:1] == ["b"]

    def lose(self) -> None:
        """Let Redis lose all its data, and mirror the new epoch."""
        now_ms = self.clock.now_ms
        self.control.flushall()
        self.clock.set(now_ms)
        drain(self.client, self.database)

    def costs(self) -> dict[str, str]:
        rows = auditlog.rows(self.database, "SELECT job_id, cost FROM job")
        return {row["job_id"]: row["cost"] for row in rows}


@pytest.fixture
def paid(start_redis: Callable[..., RedisServer], database: Database) -> Iterator[Paid]:
    made = Paid(start_redis(), database)
    yield made
    made.close()


@pytest.mark.parametrize("kind", KINDS)
def test_debts_and_pauses_stay_in_force_after_the_clock_was_set_back(
    paid: Paid, database: Database, kind: str
) -> None:
    paid.begin(kind)

    paid.clock.advance(-3_600_000)

    paid.assert_opens_after(OPENS_MS[kind])
    assert_agree(paid.client, database, LogVerdict.HOLDS)


@pytest.mark.parametrize("kind", KINDS)
def test_debts_and_pauses_stay_in_force_after_a_baseline(
    paid: Paid, database: Database, kind: str
) -> None:
    paid.begin(kind)
    paid.enqueue("c", 7)

    paid.control.delete(f"rqc:{{{QUEUE}}}:outbox")
    drain(paid.client, database)

    assert paid.costs()["c"] == "tokens:7"
    paid.assert_opens_after(OPENS_MS[kind])
    assert_agree(paid.client, database, LogVerdict.HOLDS)


def test_a_job_that_was_claimed_before_a_baseline_can_report_its_cost_and_pause_its_scope(
    paid: Paid, database: Database
) -> None:
    paid.limit()
    paid.enqueue("a", 60)
    paid.enqueue("b", 5)
    held = claim(paid.client, 1)
    paid.control.delete(f"rqc:{{{QUEUE}}}:outbox")
    drain(paid.client, database)

    paid.spend(held, told="tokens:2", pauses=f"{SCOPE}|{PAUSE_MS}")
    complete(paid.client, held)

    paid.assert_opens_after(OPENS_MS["pause"])
    assert_agree(paid.client, database, LogVerdict.HOLDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_restore_of_lost_jobs_changes_no_debt_and_no_pause_in_redis(
    paid: Paid, database: Database, kind: str
) -> None:
    """Checks a server that restarts with an older snapshot. The snapshot has the debt or the pause, and lacks the last
    job."""
    paid.begin(kind)
    paid.control.save()
    paid.enqueue("late", 9)
    drain(paid.client, database)
    paid.server.kill()
    paid.server.start()
    drain(paid.client, database)

    assert restore_jobs(paid.client, database, QUEUE, by="ada").restored == 1

    assert " cost=tokens:9 " in lines(paid.client)["late"]
    paid.assert_opens_after(OPENS_MS[kind])
    paid.clock.advance(1_000)
    assert paid.claimed() == ["late"]
    assert_agree(paid.client, database, LogVerdict.HOLDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_restore_after_a_total_loss_puts_debts_and_pauses_back(
    paid: Paid, database: Database, kind: str
) -> None:
    paid.begin(kind)
    paid.lose()

    done = restore_jobs(paid.client, database, QUEUE, by="ada")
    assert (done.restored, done.scopes) == (1, [SCOPE])
    drain(paid.client, database)
    assert restore_jobs(paid.client, database, QUEUE, by="ada").scopes == []
    paid.limit()

    paid.assert_opens_after(OPENS_MS[kind])
    assert_agree(paid.client, database, LogVerdict.HOLDS)


def test_restored_debts_last_longer_if_an_operator_has_set_a_slower_rate_after_the_loss(
    paid: Paid, database: Database
) -> None:
    """Checks a job that took 5 tokens, after the loss, under a limit that is 10 times slower."""
    paid.begin("debt")
    paid.lose()
    paid.limit("10/1000ms/10")
    paid.enqueue("early", 5)
    assert paid.claimed() == ["early"]
    drain(paid.client, database)

    assert restore_jobs(paid.client, database, QUEUE, by="ada").scopes == [SCOPE]

    paid.assert_opens_after(10 * OPENS_MS["debt"])
    assert_agree(paid.client, database, LogVerdict.HOLDS)


def test_restore_puts_back_the_units_that_were_in_use_when_the_limit_of_a_rate_changed(
    paid: Paid, database: Database
) -> None:
    """Checks a limit that became 10 times slower shortly before the loss."""
    paid.begin("debt")
    paid.limit("10/1000ms/10")
    drain(paid.client, database)
    paid.lose()
    paid.limit("10/1000ms/10")
    drain(paid.client, database)

    assert restore_jobs(paid.client, database, QUEUE, by="ada").scopes == [SCOPE]

    paid.assert_opens_after(10 * OPENS_MS["debt"])
    assert_agree(paid.client, database, LogVerdict.HOLDS)


def test_restore_adds_units_taken_after_a_change_of_a_limit_to_units_in_use_before_the_change(
    paid: Paid, database: Database
) -> None:
    """Checks a burst of 100. The first job took 60 tokens, and after the change, ``b`` took 5."""
    paid.begin("debt")
    paid.limit("10/1000ms/100")
    paid.enqueue("c", 40)
    assert paid.claimed() == ["b"]
    drain(paid.client, database)
    paid.lose()
    paid.limit("10/1000ms/100")
    drain(paid.client, database)

    restored = restore_jobs(paid.client, database, QUEUE, by="ada")

    assert (restored.restored, restored.scopes) == (1, [SCOPE])
    assert paid.claimed() == []
    paid.clock.advance(499)
    assert paid.claimed() == []
    paid.clock.advance(1)
    assert paid.claimed() == ["c"]
    assert_agree(paid.client, database, LogVerdict.HOLDS)
