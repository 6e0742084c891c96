"""The cases in which scripts must examine a scope again. Without one of them, a job would wait for ever.

A lane must be opened if a place in its scope becomes free. It must be opened if the scope's limit changes, or if its
rate admits jobs again. It must also be opened if an open lane of the same scope loses its first job.

Each test ends with an idle worker that claims again and again. Six mutants in tests/rigs/mutants/mutants.toml each
remove a case.
"""

import pytest

from tests.kit.lanes import waiting_in_vain
from tests.kit.seed import Seed


def expect(seed: Seed, job_id: str) -> None:
    """Assert that an idle worker gets exactly this job, however often it claims."""
    claimed = [c.id for _ in range(5) for c in seed.claim().jobs]

    assert claimed == [job_id], waiting_in_vain(seed.snapshot())
    seed.assert_consistent()


def test_a_blocked_lane_opens_when_a_place_under_its_cap_becomes_free(seed: Seed) -> None:
    seed.cap("tenant", 1)
    seed.enqueue("first", "next", scopes=["tenant=x"])
    (first,) = seed.claim().jobs
    assert seed.claim().jobs == ()

    seed.complete(first)

    expect(seed, "next")


@pytest.mark.parametrize("scope", ["tenant", "tenant=x"])
def test_a_blocked_lane_opens_when_its_cap_is_raised(seed: Seed, scope: str) -> None:
    seed.cap("tenant", 1)
    seed.enqueue("first", "next", scopes=["tenant=x"])
    seed.claim()
    assert seed.claim().jobs == ()

    seed.cap(scope, 2)

    expect(seed, "next")


def test_a_blocked_lane_opens_when_its_rate_admits_jobs_again(seed: Seed) -> None:
    seed.cap("tenant@10s", "1/10000ms/1")
    seed.enqueue("first", "next", scopes=["tenant@10s=x"])
    seed.claim()
    assert seed.claim().jobs == ()

    seed.advance(10_000)

    expect(seed, "next")


def taken(seed: Seed) -> int:
    """Return how many jobs an idle worker gets if it claims again and again."""
    return sum(len(seed.claim().jobs) for _ in range(8))


@pytest.mark.parametrize("scopes", [1, 120], ids=["one", "more than a claim re-evaluates"])
def test_a_rate_admits_the_next_job_after_one_interval_even_if_the_clock_was_set_back(
    seed: Seed, scopes: int
) -> None:
    """The jobs must not wait until the clock shows its earlier time again."""
    for family in ("a@10s", "b@10s"):
        seed.cap(family, "1/10000ms/1")
    names = [f"{family}={n}" for family in ("a@10s", "b@10s") for n in range(scopes)]
    for n, name in enumerate(names):
        seed.enqueue(f"{n}-1", f"{n}-2", scopes=[name])
    assert taken(seed) == len(names)

    seed.advance(-3_600_000)
    assert taken(seed) == 0
    seed.advance(10_000)
    assert taken(seed) == len(names), waiting_in_vain(seed.snapshot())


def test_a_raised_rate_admits_the_next_job_after_the_new_interval(seed: Seed) -> None:
    seed.cap("tenant@3600s", "1/3600000ms/1")
    seed.enqueue("first", "next", scopes=["tenant@3600s=x"])
    assert taken(seed) == 1

    seed.cap("tenant@3600s", "360/3600000ms/1")
    assert taken(seed) == 0
    seed.advance(10_000)

    expect(seed, "next")


def test_a_free_place_goes_to_the_next_lane_if_another_full_scope_blocks_the_lane_before_it(
    seed: Seed,
) -> None:
    """A place under the task's cap is free. The lane of tenant x comes first, but the cap of tenant x is full. So the
    job of tenant y gets the place."""
    seed.cap("task=t", 1)
    seed.cap("tenant", 1)
    seed.enqueue("w-1", scopes=["task=t", "tenant=w"])
    seed.enqueue("other", task="u", scopes=["tenant=x"])
    w, _ = seed.claim().jobs
    for job_id, tenant in [("x-1", "x"), ("y-1", "y")]:
        seed.enqueue(job_id, scopes=["task=t", f"tenant={tenant}"])
    assert seed.claim().jobs == ()

    seed.complete(w)

    expect(seed, "y-1")


def test_a_blocked_lane_opens_when_the_lane_before_it_is_emptied(seed: Seed) -> None:
    """The free place is offered to a job that is cancelled before a worker claims it."""
    seed.cap("task=t", 1)
    for job_id, tenant in [("w-1", "w"), ("x-1", "x"), ("y-1", "y")]:
        seed.enqueue(job_id, scopes=["task=t", f"tenant={tenant}"])
    (w,) = seed.claim().jobs
    assert seed.claim().jobs == ()
    seed.complete(w)

    seed.cancel("x-1")

    expect(seed, "y-1")
