"""One call that enqueues several jobs with the same unique name or id. Each answer must be true at the end of the
call."""

from typing import Any

import pytest

from tests.kit.consistency import assert_consistent
from tests.kit.seed import Seed

A, B, C = "t/n=a", "t/n=b", "t/n=c"
MEMORY_MS = 60_000


def job(seed: Seed, job_id: str, name: str, how: str = "replace", **options: Any) -> Any:
    return seed.job(job_id, unique=how, name=name, **options)


def waiting(seed: Seed) -> set[str]:
    return set(seed.snapshot()["jobs"])


@pytest.mark.parametrize("holds", ["a job that waits", "a job that runs"])
def test_the_second_job_with_an_id_is_enqueued_if_the_first_was_rejected_and_no_job_runs_under_its_name(
    seed: Seed, holds: str
) -> None:
    seed.enqueue(job(seed, "runs", A))
    seed.claim_one("runs")
    seed.enqueue(job(seed, "holder", B))
    if holds == "a job that runs":
        seed.claim_one("holder")
    found = seed.enqueue(job(seed, "other", "t/n=c"), job(seed, "twice", A), job(seed, "twice", B))

    if holds == "a job that runs":
        assert (("other",), (("twice", "runs"), ("twice", "holder"))) == (found.ids, found.held)
    else:
        assert (("other", "twice"), (("twice", "runs"),)) == (found.ids, found.held)
        assert (("twice", "holder"),) == found.replaced


def test_each_job_with_the_name_of_a_running_job_is_answered_with_that_job(
    seed: Seed,
) -> None:
    """The answer must not name another job of the same call, since none of them is enqueued."""
    seed.enqueue(job(seed, "runs", A))
    seed.claim_one("runs")
    found = seed.enqueue(*(job(seed, i, A) for i in ("x", "y", "z")))

    assert ((), tuple((i, "runs") for i in ("x", "y", "z"))) == (found.ids, found.held)


def test_each_rejected_job_is_answered_with_the_last_job_of_the_same_name_in_the_call(
    seed: Seed,
) -> None:
    """The last of three jobs replaces the first one. The middle job never gets the name."""
    found = seed.enqueue(
        job(seed, "first", A), job(seed, "between", A, "keep"), job(seed, "last", A)
    )

    assert ("last",) == found.ids
    assert (("first", "last"), ("between", "last")) == found.held


def test_a_later_job_whose_id_is_a_duplicate_replaces_no_job_of_the_call(seed: Seed) -> None:
    found = seed.enqueue(job(seed, "twice", B), job(seed, "x", A), job(seed, "twice", A))

    assert (("twice", "x"), ("twice",), ()) == (found.ids, found.duplicates, found.held)


@pytest.mark.parametrize("lane", ["", "2+host=h"])
@pytest.mark.parametrize(("name", "stands"), [(B, {"new", "old"}), (A, {"new"})])
def test_the_id_of_a_replaced_job_is_free_within_the_same_call(
    seed: Seed, name: str, stands: set[str], lane: str
) -> None:
    seed.enqueue(job(seed, "old", A, lane=lane, delay_ms=500))
    found = seed.enqueue(job(seed, "new", A, lane=lane), job(seed, "old", name, lane=lane))

    assert stands == waiting(seed)
    assert (("new", "old"),) == found.replaced
    assert ((("old", "new"),) if name == A else ()) == found.held
    assert () == found.duplicates
    assert_consistent(seed.snapshot())
    assert stands == {claim.id for claim in seed.claim().jobs}


def test_a_job_without_a_unique_name_may_take_the_id_of_a_job_that_the_same_call_replaced(
    seed: Seed,
) -> None:
    seed.enqueue(job(seed, "old", A))
    found = seed.enqueue(job(seed, "new", A), seed.job("old"))

    assert (("new", "old"), ()) == (found.ids, found.duplicates)
    assert_consistent(seed.snapshot())
    assert {"new", "old"} == {claim.id for claim in seed.claim().jobs}


def test_a_replaced_job_leaves_no_result_if_a_later_job_of_the_call_takes_its_id(
    seed: Seed,
) -> None:
    seed.enqueue(job(seed, "old", A, keep_ms=MEMORY_MS))
    found = seed.enqueue(job(seed, "new", A), job(seed, "old", B, keep_ms=MEMORY_MS))

    assert ("new", "old") == found.ids
    assert {} == seed.snapshot()["results"]


def test_a_call_may_enqueue_a_job_with_the_id_of_a_job_that_the_call_replaced(
    seed: Seed,
) -> None:
    """The first two jobs of the call replace two waiting jobs. The other two have the ids of the replaced jobs.

    These two jobs share a name. The first gets the name. The second is rejected, and its answer is the first job's id.
    """
    seed.enqueue(job(seed, "one", A), job(seed, "two", B))
    found = seed.enqueue(
        job(seed, "new", A), job(seed, "newer", B), job(seed, "one", C), job(seed, "two", C)
    )

    assert (("new", "newer", "one"), (("two", "one"),)) == (found.ids, found.held)
    assert {"new", "newer", "one"} == waiting(seed)


def test_a_remembered_id_of_a_replaced_job_refers_to_the_job_that_replaced_it(seed: Seed) -> None:
    seed.enqueue(job(seed, "old", A, remember_ms=MEMORY_MS))
    found = seed.enqueue(job(seed, "new", A), job(seed, "old", B, remember_ms=MEMORY_MS))

    assert (("new",), (("old", "new"),)) == (found.ids, found.held)


def test_a_second_job_with_the_remembered_id_of_a_rejected_job_gets_the_same_answer_in_one_call(
    seed: Seed,
) -> None:
    """The call has two jobs with one id. The first is rejected, and the id then refers to the holder of its name. So
    the second job gets the same answer, although its own name is free."""
    seed.enqueue(job(seed, "runs", A))
    seed.claim_one("runs")
    found = seed.enqueue(*(job(seed, "twice", n, remember_ms=MEMORY_MS) for n in (A, B)))

    assert ((), (("twice", "runs"), ("twice", "runs"))) == (found.ids, found.held)


@pytest.mark.parametrize("rule", ["discard", "reject"])
@pytest.mark.parametrize("full_at", [0, 1])
def test_a_job_is_not_replaced_by_a_later_job_that_a_cap_may_discard(
    seed: Seed, rule: str, full_at: int
) -> None:
    seed.cap("host=h", full_at)
    ruled = {"lane": "2+host=h", "full": f"{rule}|host=h"}
    found = seed.enqueue(job(seed, "first", A), job(seed, "last", A, **ruled))

    assert (("first",), (("last", "first"),)) == (found.ids, found.held)
    assert {"first"} == waiting(seed)
