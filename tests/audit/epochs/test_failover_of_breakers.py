"""Failovers to a replica that lacks the last change of a breaker's scope."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from rq_core.model.limits.breakers import LOOK_MS, read_breaker
from rq_core.model.limits.limit import FOREVER_MS
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.result import LogVerdict
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.lost_pauses import LostPause
from sql_audit.upkeep.restore import restore_jobs
from sql_audit.upkeep.survey import survey
from tests.audit.epochs.forgetting import orphaned, timed_client
from tests.audit.epochs.test_failover import Pair
from tests.audit.restore.jobs import claim, complete, invoke, lines
from tests.audit.test_breakers_kept import COOLDOWN, SCOPE, Fragile
from tests.kit.agreement import assert_agree, drain
from tests.kit.fleet import QUEUE
from tests.kit.schemas import lay_schema
from tests.kit.servers import RedisServer, engines

JOBS: Final = tuple("abcdefgh")


class Parted:
    """A primary and its replica. At a moment the replication stops, and later the replica takes the primary's place."""

    def __init__(self, start_redis: Callable[..., RedisServer], database: Database) -> None:
        self.pair = Pair(start_redis)
        self.old = Fragile(self.pair.first, database)
        self.new: Fragile | None = None
        self.held: dict[str, str] = {}
        """The fences of the claims that workers hold, also of those that the replica does not know."""

    def close(self) -> None:
        self.old.close()
        if self.new is not None:
            self.new.close()

    def act(self, fragile: Fragile, *acts: str) -> None:
        for each in acts:
            if each == "claim":
                self.held |= claim(fragile.client, 1)
            elif each == "cooldown":
                fragile.clock.advance(COOLDOWN)
            elif each == "pause":
                fragile.client.run(fragile.client.calls.pauses.pause(QUEUE, SCOPE, by="ada"))
            elif each == "resume":
                fragile.resume()
            else:
                one = {job: self.held.pop(job) for job in list(self.held)[:1]}
                fragile.fail(one) if each == "fail" else complete(fragile.client, one)

    def part(self) -> None:
        """Let the replica have all that the primary has now, and nothing that the primary gets later."""
        self.pair.follow(self.pair.second, self.pair.first)
        self.pair.promote(self.pair.second)

    def fail_over(self) -> Fragile:
        """Kill the primary. Workers declare the breaker again on the new primary."""
        now_ms = self.old.clock.now_ms
        drain(self.old.client, self.old.database)
        self.pair.first.kill()
        self.new = Fragile(self.pair.second, self.old.database)
        self.new.clock.set(now_ms)
        return self.new


@pytest.fixture
def parted(start_redis: Callable[..., RedisServer], sqlite_url: str) -> Iterator[Parted]:
    database = Database(sqlite_url)
    lay_schema(database)
    made = Parted(start_redis, database)
    yield made
    made.close()
    database.close()


PAUSED: Final = ("claim", "claim", "fail", "fail")
PROBING: Final = (*PAUSED, "cooldown", "claim")
pytestmark = pytest.mark.slow
on_valkey = pytest.mark.parametrize("engine", engines()[:1], ids=lambda each: each.name)


def standing(fragile: Fragile) -> str:
    """Return whether the scope is open, paused or probing in Redis."""
    snapshot = fragile.client.run(fragile.client.calls.reads.snapshot(QUEUE))
    entry = read_breaker(snapshot["rates"].get(SCOPE, ""))
    return "open" if entry is None else entry.standing(fragile.clock.now_ms)


def recover(fragile: Fragile) -> int:
    """Let time pass, and let a worker run one job after the other, until all jobs have ended. Return the number of
    probes.

    Assert that at most one job is claimed while the scope is not open."""
    probes = 0
    for _ in range(40):
        fragile.clock.advance(LOOK_MS)
        is_open = standing(fragile) == "open"
        held = claim(fragile.client, 9)
        assert is_open or len(held) <= 1
        probes += len(held) * (not is_open)
        complete(fragile.client, held)
        if not lines(fragile.client):
            return probes
    raise AssertionError(
        f"the scope is {standing(fragile)}, and jobs wait: {lines(fragile.client)}"
    )


@on_valkey
@pytest.mark.parametrize(
    ("kept", "lost", "stands", "begin", "probes"),
    [
        pytest.param(("claim", "claim", "fail"), ("fail",), "open", 7, 0, id="pause"),
        pytest.param(PAUSED, ("cooldown", "claim"), "probing", 1, 0, id="probe"),
        pytest.param(
            PAUSED, ("cooldown", "claim", "succeed"), "probing", 1, 0, id="probe-and-success"
        ),
        pytest.param(PROBING, ("succeed",), "probing", 0, 1, id="success"),
        pytest.param(PROBING, ("fail",), "probing", 0, 1, id="failure"),
    ],
)
def test_after_a_failover_that_lost_a_change_of_a_breaker_probes_run_one_at_a_time_and_all_jobs_end(
    parted: Parted,
    kept: tuple[str, ...],
    lost: tuple[str, ...],
    stands: str,
    begin: int,
    probes: int,
) -> None:
    parted.old.enqueue(*JOBS)
    parted.act(parted.old, *kept)
    parted.part()
    parted.act(parted.old, *lost)

    new = parted.fail_over()

    assert standing(new) == stands
    begun = claim(new.client, 9)
    assert len(begun) == begin
    # A worker that has a probe of the old primary does not open the scope.
    assert len(complete(new.client, parted.held)) == len(parted.held)
    assert (standing(new), claim(new.client, 9)) == (stands, {})
    complete(new.client, begun)
    assert recover(new) == probes
    assert_agree(new.client, new.database, LogVerdict.HOLDS)
    assert orphaned(new.database)


@contextlib.contextmanager
def mirroring(fragile: Fragile) -> Iterator[None]:
    """Run a mirror on the test's clock during the block."""
    stop = threading.Event()

    def work() -> None:
        with timed_client(fragile.server) as client:
            mirror = Mirror(Outbox(client), fragile.database, QUEUE)
            while not stop.wait(0.01):
                mirror.turn()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@on_valkey
@pytest.mark.parametrize(
    ("kept", "lost", "was", "wants"),
    [
        pytest.param((), ("pause",), "open", "paused", id="pause"),
        pytest.param(("pause",), ("resume",), "paused", "open", id="resume"),
    ],
)
def test_restore_repeats_an_operators_change_that_the_replica_did_not_have(
    parted: Parted, kept: tuple[str, ...], lost: tuple[str, ...], was: str, wants: str
) -> None:
    """Checks that a scope does not stay paused for ever if its resume is lost."""
    parted.old.enqueue(*JOBS)
    parted.act(parted.old, *kept)
    parted.part()
    parted.act(parted.old, *lost)
    new = parted.fail_over()
    drain(new.client, new.database)
    assert standing(new) == was

    listed = survey(new.client, new.database, QUEUE).pauses
    did = "paused it until it is resumed" if wants == "paused" else "resumed it"
    printed = invoke(new.database, new.server.url).output
    assert f"scope {SCOPE}: Redis lost that ada {did}" in printed
    with mirroring(new):
        done = restore_jobs(new.client, new.database, QUEUE, by="bob")

    change = LostPause(SCOPE, FOREVER_MS if wants == "paused" else None, "ada")
    assert (listed, done.pauses) == ([change], [change])
    assert standing(new) == wants
    drain(new.client, new.database)
    assert survey(new.client, new.database, QUEUE).pauses == []
    # The doctor goes by the time of the last claim.
    assert bool(claim(new.client, 1)) == (wants == "open")
    assert_agree(new.client, new.database, LogVerdict.HOLDS)


@on_valkey
def test_restore_keeps_an_operators_change_after_the_failover(parted: Parted) -> None:
    parted.old.enqueue(*JOBS)
    parted.part()
    parted.act(parted.old, "pause")
    new = parted.fail_over()
    parted.act(new, "pause", "resume")
    drain(new.client, new.database)

    assert survey(new.client, new.database, QUEUE).pauses == []
    assert restore_jobs(new.client, new.database, QUEUE, by="bob").pauses == []
    assert standing(new) == "open"
