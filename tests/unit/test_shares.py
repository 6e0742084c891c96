"""The division of a worker's free places between its queues."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rq_core.worker.capacity import Shares


def served(shares: Shares, turns: int, places: int, queues: list[str]) -> Counter[str]:
    """Return how many places each queue gets in ``turns`` claims, if all queues always have jobs."""
    got: Counter[str] = Counter()
    for _ in range(turns):
        for queue, share in shares.divide(places, queues).items():
            shares.take(queue, share)
            got[queue] += share
    return got


@pytest.mark.parametrize("places", [1, 2, 3, 7, 50])
def test_the_places_of_a_worker_are_divided_among_its_queues_by_weight(places: int) -> None:
    got = served(Shares({"mail": 3}), 400, places, ["mail", "reports"])

    assert abs(got["mail"] - 3 * got["reports"]) <= 4


def test_the_queues_of_a_worker_with_a_single_place_get_the_place_in_turn_by_weight() -> None:
    """The worker has fewer places than queues. No queue starves, even with a small weight."""
    got = served(Shares({"a": 50, "b": 2}), 53, 1, ["a", "b", "c"])

    assert {"a": 50, "b": 2, "c": 1} == got


def test_places_of_a_worker_that_one_queue_does_not_use_go_to_its_other_queues() -> None:
    assert {"mail": 10} == Shares({"reports": 9}).divide(10, ["mail"])


def test_a_queue_that_was_idle_gets_no_extra_places_of_the_worker_later() -> None:
    """The queue gets only its share when it has jobs again. The other queues need not wait until it has caught up."""
    shares = Shares({})
    served(shares, 1_000, 1, ["mail"])

    got = served(shares, 10, 1, ["mail", "reports"])

    assert abs(got["mail"] - got["reports"]) <= 2


def test_places_that_a_queue_gives_back_do_not_reduce_the_share_of_the_queue() -> None:
    shares = Shares({})
    shares.take("mail", 10)
    shares.refund("mail", 10)

    assert {"mail": 5, "reports": 5} == shares.divide(10, ["mail", "reports"])


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 1_000), min_size=1),
    st.integers(0, 5_000),
)
def test_the_places_of_all_queues_together_are_the_free_places_of_the_worker(
    weights: dict[str, int], places: int
) -> None:
    assert places == sum(Shares(weights).divide(places, list(weights)).values())


def test_a_single_queue_gets_all_places_without_bookkeeping() -> None:
    """Most workers have one queue. They keep no counts before their claims."""
    shares = Shares({"mail": 3}, alone=True)

    assert shares.divide(7, ["mail"]) == {"mail": 7}
    shares.take("mail", 7)
    shares.refund("mail", 2)

    assert not shares._clocks
