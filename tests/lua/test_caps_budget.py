"""The costs of caps, as numbers of ``redis.call``s. They do not depend on the speed of the machine."""

from collections import deque
from collections.abc import Iterable
from random import Random

import pytest

from rq_core.model.job import NewJob
from tests.kit.seed import Seed
from tests.kit.tally import Tally, calls_of
from tests.rigs import budgets

BLOCKED = 5_000
"""The number of blocked jobs in the tests of this module. `scripts/measure/once/run cap-costs` uses 100,000."""


JOINING = 4_000
"""The number of lanes that one call makes."""


def fill(seed: Seed, jobs: Iterable[NewJob]) -> None:
    seed.client.run(seed.client.calls.enqueue.many(jobs))


def one_lane(seed: Seed, count: int) -> Iterable[NewJob]:
    return (seed.job(f"j-{n}", scopes=["tenant=full"]) for n in range(count))


def many_lanes(seed: Seed, count: int) -> Iterable[NewJob]:
    return (seed.job(f"j-{n}", scopes=["host=full", f"tenant=t{n}"]) for n in range(count))


@pytest.mark.parametrize("waiting", [one_lane, many_lanes])
@pytest.mark.parametrize("scopes", [[], ["tenant=free"]], ids=["plain", "in_a_lane"])
def test_a_job_with_free_scopes_is_claimed_next_though_many_jobs_are_blocked(
    seed: Seed, waiting: object, scopes: list[str]
) -> None:
    """Many jobs wait for a full scope, and no job was claimed since they were enqueued."""
    seed.cap("tenant", 1)
    seed.cap("host", 1)
    fill(seed, waiting(seed, BLOCKED))  # type: ignore[operator]
    seed.enqueue(seed.job("beside", scopes=scopes))

    first = seed.claim(10)

    assert sorted(c.id for c in first.jobs) == ["beside", "j-0"]


@pytest.mark.parametrize("waiting", [one_lane, many_lanes])
def test_the_cost_of_a_claim_does_not_grow_with_blocked_jobs(seed: Seed, waiting: object) -> None:
    """Checks a claim that finds nothing, and a claim of one job, beside 100 and beside 5,000 blocked jobs.

    Each makes at most 20 % more calls than without blocked jobs.
    """
    seed.cap("tenant", 1)
    seed.cap("host", 1)
    seed.running("holder", scopes=["host=full", "tenant=full"])
    costs: list[tuple[int, int]] = []
    added = 0
    for blocked in (0, 100, BLOCKED):
        fill(seed, list(waiting(seed, blocked))[added:])  # type: ignore[operator]
        added = blocked
        seed.claim(10)
        empty = calls_of(seed.control, lambda: seed.claim(10))
        seed.enqueue(seed.job(f"beside-{blocked}", scopes=["tenant=free"]))
        tally = Tally(seed.control)
        with tally.counting():
            found = seed.claim(10)
        assert [c.id for c in found.jobs] == [f"beside-{blocked}"]
        seed.complete(*found.jobs)
        costs.append((empty, tally.calls))

    for empty, beside in costs[1:]:
        assert empty <= costs[0][0] * 1.2, costs
        assert beside <= costs[0][1] * 1.2, costs


@pytest.mark.slow
@pytest.mark.damaged
def test_the_first_and_the_last_completion_in_a_queue_take_the_same_number_of_redis_calls(
    seed: Seed,
) -> None:
    """The task has a cap of 10, and each of 200 tenants has a cap of 1. Each step settles one job and claims the
    next."""
    tenants, jobs, tenths, draw = 200, 3_000, 10, Random(7)
    seed.cap("task=t", 10)
    seed.cap("tenant", 1)
    fill(
        seed,
        (
            seed.job(f"j-{n}", scopes=["task=t", f"tenant=t{draw.randrange(tenants)}"])
            for n in range(jobs)
        ),
    )
    running = deque(seed.claim(10).jobs)
    costs = []
    for _ in range(tenths):

        def tenth() -> None:
            for _ in range(jobs // tenths):
                if running:
                    seed.complete(running.popleft())
                    running.extend(seed.claim(10).jobs)
                    assert len(running) <= 10

        costs.append(calls_of(seed.control, tenth) / (jobs // tenths))

    assert not running
    assert seed.control.hlen(seed.keys("jobs")) == 0
    budgets.check("redis_calls", "settle_and_claim.200_tenants", max(costs))
    assert max(costs) <= min(costs) * 1.2, costs


def test_the_cost_of_changing_a_family_cap_does_not_grow_with_waiting_lanes(seed: Seed) -> None:
    """The change opens only the first lanes, and each later claim opens a few more."""
    lanes = 1_000
    seed.cap("tenant", 0)
    fill(seed, (seed.job(f"j-{n}", scopes=[f"tenant=t{n}"]) for n in range(lanes)))

    claimed, most = 0, calls_of(seed.control, lambda: seed.cap("tenant", 1))
    while claimed < lanes:
        tally = Tally(seed.control)
        with tally.counting():
            claimed += len(seed.claim(10).jobs)
        most = max(most, tally.calls)
    budgets.check("redis_calls", "change_of_a_family", most)


@pytest.mark.parametrize(
    ("name", "scopes"),
    [("plain", ()), ("one_cap", ("task=t",)), ("two_caps", ("task=t", "tenant=a"))],
)
@pytest.mark.parametrize("size", [1, 100])
def test_the_redis_calls_from_the_enqueue_to_the_end_of_a_job_are_within_the_budget(
    seed: Seed, name: str, scopes: tuple[str, ...], size: int
) -> None:
    """Counts enqueue, claim and complete together, for one job and for 100 jobs in the same three calls."""
    seed.cap("task=t" if scopes else "task=other", 1_000)
    if "tenant=a" in scopes:
        seed.cap("tenant", 1_000)

    def life(of: str) -> None:
        seed.enqueue(*(seed.job(f"{of}-{n}", scopes=scopes) for n in range(size)))
        seed.complete(*seed.claim(size).jobs)

    # The first claim says that the queue lives, so the facts are read again once more.
    life("warm")
    life("warmer")
    cost = calls_of(seed.control, lambda: life("measured"))

    budgets.check("redis_calls", f"life.{name}.{size}", cost)


@pytest.mark.slow
def test_enqueue_into_an_exhausted_rate_takes_time_in_proportion_to_the_number_of_new_lanes(
    seed: Seed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compares Redis' time for 4,000 new lanes on an exhausted rate and on another rate.

    A new lane must not read all lanes that the call has already blocked. Otherwise four times as many jobs would take
    sixteen times as long.
    """
    monkeypatch.setattr("rq_core.protocol.calls.enqueue.ENQUEUE_CHUNK", JOINING)
    seed.cap("spent@60s", "1/60000ms/1")
    seed.cap("free@60s", "none")
    seed.enqueue("taken", "first", scopes=["spent@60s="])
    assert [c.id for c in seed.claim().jobs] == ["taken"]

    def busy_us(family: str, turn: int) -> int:
        names = [f"{family}-{turn}-{n}" for n in range(JOINING)]
        jobs = [seed.job(n, scopes=[f"{family}@60s=", f"tenant={n}"]) for n in names]
        tally = Tally(seed.control)
        with tally.counting():
            seed.client.run(seed.client.calls.enqueue.many(jobs))
        return tally.script_us

    busy_us("free", 0)
    free, spent = (min(busy_us(family, turn) for turn in (1, 2, 3)) for family in ("free", "spent"))

    assert spent < 3 * free
    assert seed.control.zcard(seed.keys("blocked")) == 3 * JOINING + 1


def test_the_first_job_of_a_new_key_in_a_fair_queue_is_claimed_next(seed: Seed) -> None:
    """Many jobs of another key wait, with the same priority and under the same cap.

    The claim costs as many calls as beside 100 waiting jobs, within 20 %.
    """
    seed.configure(fair=1)
    seed.cap("task=t", 10)
    costs = []
    added = 0
    for waiting in (100, BLOCKED):
        fill(
            seed,
            (seed.job(f"x-{n}", scopes=["task=t", "fair=x"]) for n in range(added, waiting)),
        )
        added = waiting
        held = seed.claim().jobs
        assert len(held) == 10
        seed.enqueue(f"y-{waiting}", scopes=["task=t", "fair=y"])
        seed.complete(*held)
        tally = Tally(seed.control)
        with tally.counting():
            claimed = seed.claim(2)
        assert f"y-{waiting}" in [c.id for c in claimed.jobs]
        seed.complete(*claimed.jobs)
        costs.append(tally.calls)

    assert costs[1] <= costs[0] * 1.2, costs
