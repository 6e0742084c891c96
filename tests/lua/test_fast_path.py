"""The fast path of claims, which takes ordinary jobs while no other work is due. It must not change the result."""

import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from rq_core.scripts.header import Variant
from rq_core.scripts.script import Script, build_function
from tests.kit.clock import CLOCK, timed
from tests.kit.lanes import holders_of
from tests.kit.seed import Seed
from tests.kit.snapshots import Snapshot
from tests.lua.test_functions import history

NOTHING = """--[[ fast_path: nothing is taken in passing. ]]

local noted_first

local function take_fast()
end

local function rejoin()
end

local function leave_fast()
end
"""
SCRIPTS: dict[str, Callable[[str], Script]] = {
    "with": timed,
    "without": partial(
        build_function, variant=Variant(includes={"clock": CLOCK, "fast_path": NOTHING})
    ),
}


@pytest.fixture(params=list(SCRIPTS))
def seed(redis_url: str, request: pytest.FixtureRequest) -> Iterator[Seed]:
    with Seed(redis_url, scripts=SCRIPTS[request.param]) as made:
        yield made


@pytest.mark.parametrize("number", range(10, 14))
def test_claims_with_and_without_the_fast_path_write_the_same_bytes(
    redis_url: str, number: int
) -> None:
    told: list[list[Snapshot]] = []
    for scripts in SCRIPTS.values():
        with Seed(redis_url, scripts=scripts) as seed:
            seed.control.flushall()
            seed.clock.set(seed.now)
            told.append(list(history(seed, number)))
    for step, (fast, slow) in enumerate(zip(*told, strict=True)):
        fast["meta"].pop("replid"), slow["meta"].pop("replid")
        assert fast == slow, f"after call {step} of history {number}"


def ids(claimed: object) -> list[str]:
    return [c.id for c in claimed.jobs]  # type: ignore[attr-defined]


def order(seed: Seed, count: int) -> list[str]:
    """Claim all jobs at once, and return their ids in the order of the answer. Then check all indexes."""
    taken = ids(seed.claim(count + 10))
    assert len(taken) == count
    seed.assert_consistent()
    return taken


def test_a_claim_takes_many_jobs_of_a_lane_in_their_order(seed: Seed) -> None:
    seed.cap("task=t", 1_000)
    names = [f"j-{n:03}" for n in range(150)]
    seed.enqueue(*(seed.job(name, scopes=["task=t"]) for name in names))

    assert order(seed, 150) == names
    assert seed.snapshot()["waiting"] == {}
    assert len(holders_of(seed.snapshot())["task=t"]) == 150


def test_a_claim_stops_at_its_limit_and_the_next_claim_takes_the_following_jobs(seed: Seed) -> None:
    seed.cap("task=t", 1_000)
    names = [f"j-{n:02}" for n in range(60)]
    seed.enqueue(*(seed.job(name, scopes=["task=t"]) for name in names))

    taken = []
    for size in (1, 2, 3, 20, 33, 1):
        taken += ids(seed.claim(size))
        seed.assert_consistent()

    assert taken == names


def test_a_claim_takes_jobs_without_caps_and_jobs_of_two_lanes_in_the_order_of_their_ages(
    seed: Seed,
) -> None:
    seed.cap("tenant", 1_000)
    names = []
    for n in range(90):
        tenant = None if n % 17 == 16 else "b" if n % 11 == 10 else "a"
        names.append(f"j-{n:02}")
        scopes = [] if tenant is None else [f"tenant={tenant}"]
        seed.enqueue(seed.job(names[-1], scopes=scopes))

    assert order(seed, 90) == names


@pytest.mark.parametrize("number", range(5))
def test_jobs_of_randomly_mixed_lanes_are_claimed_in_the_order_of_their_ages(
    seed: Seed, number: int
) -> None:
    draw = random.Random(number)
    seed.cap("tenant", 1_000)
    names = []
    tenant = "a"
    for n in range(120):
        tenant = draw.choice("abc") if draw.random() < 0.2 else tenant
        names.append(f"j-{n:03}")
        plain = draw.random() < 0.05
        seed.enqueue(seed.job(names[-1], scopes=[] if plain else [f"tenant={tenant}"]))

    assert order(seed, 120) == names


@pytest.mark.parametrize("number", range(5))
def test_jobs_of_random_lanes_and_priorities_are_claimed_by_priority_and_age(
    seed: Seed, number: int
) -> None:
    draw = random.Random(number)
    seed.cap("tenant", 1_000)
    names: dict[str, list[str]] = {"high": [], "normal": [], "low": []}
    for n in range(150):
        priority = draw.choice(("high", "normal", "normal", "low"))
        names[priority].append(f"j-{n:03}")
        plain = draw.random() < 0.1
        scopes = [] if plain else [f"tenant=k{draw.randrange(60)}"]
        seed.enqueue(seed.job(f"j-{n:03}", scopes=scopes, priority=priority))
    seed.cancel(*draw.sample(names["normal"], 5))
    wanted = [name for group in names.values() for name in group if name in seed.snapshot()["jobs"]]

    taken: list[str] = []
    while len(taken) < len(wanted):
        taken += ids(seed.claim(draw.choice((1, 3, 20, 50))))
        seed.assert_consistent()

    assert taken == wanted


def test_a_served_lane_opens_the_next_waiting_lanes(seed: Seed) -> None:
    """A call frees two places and opens one lane. A claim serves this lane, and then opens a second one."""
    seed.cap("task=t", 2)
    for name in "abcd":
        seed.enqueue(seed.job(name, scopes=["task=t", f"tenant={name}"]))
    first = seed.claim()
    assert ids(first) == ["a", "b"]
    assert ids(seed.claim()) == []
    seed.complete(*first.jobs)

    assert ids(seed.claim()) == ["c", "d"]


def test_jobs_of_many_tenants_are_claimed_in_the_order_of_their_ages(seed: Seed) -> None:
    """Each tenant runs one job at a time. When the first jobs have ended, the next jobs run in their order."""
    seed.cap("tenant", 1)
    names = [f"j-{n:02}" for n in range(60)]
    for n, name in enumerate(names):
        seed.enqueue(seed.job(name, scopes=[f"tenant=k{n % 20}"]))

    taken = []
    while len(taken) < 60:
        claimed = seed.claim(15)
        taken += ids(claimed)
        seed.assert_consistent()
        seed.complete(*claimed.jobs)
        seed.assert_consistent()

    assert taken == names


def test_a_claim_of_one_lane_stops_at_its_cap(seed: Seed) -> None:
    seed.cap("task=t", 25)
    seed.enqueue(*(seed.job(f"j-{n:02}", scopes=["task=t"]) for n in range(40)))

    first = seed.claim(100)

    assert ids(first) == [f"j-{n:02}" for n in range(25)]
    seed.assert_consistent()
    seed.complete(*first.jobs)
    assert ids(seed.claim(100)) == [f"j-{n:02}" for n in range(25, 40)]


def test_a_claim_of_one_lane_handles_rolled_back_and_cancelled_jobs(seed: Seed) -> None:
    """Rolled back jobs have other state lines, and cancelled jobs have none."""
    seed.cap("task=t", 1_000)
    names = [f"j-{n:02}" for n in range(40)]
    seed.enqueue(*(seed.job(name, scopes=["task=t"]) for name in names))
    seed.rollback(*seed.claim(12).jobs)
    seed.cancel("j-05", "j-20", "j-21")

    rest = [name for name in names if name not in ("j-05", "j-20", "j-21")]
    assert sorted(order(seed, 37)) == rest
