"""Overdue jobs, which are past their deadlines and will never run. Their ids are free for new jobs."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.consistency import assert_consistent
from tests.kit.seed import Seed, events_of

CALL, OTHER = "=" + "70c5" * 8, "=" + "0" * 32
NAME = "t/tenant=acme"
LANES = pytest.mark.parametrize("lane", ["", "2+host=h"])


def given_back(seed: Seed, lane: str, **options: Any) -> None:
    """Let a worker roll a claim back, which does not count as a failure."""
    seed.rollback(seed.running("a", lane=lane, expires_in_ms=1_000, **options))


STANDS: dict[str, Callable[[Seed, str], Any]] = {
    "ready": lambda s, lane: s.enqueue("a", lane=lane, expires_in_ms=1_000),
    "scheduled": lambda s, lane: s.enqueue("a", lane=lane, delay_ms=500, expires_in_ms=1_000),
    "given back": given_back,
}


@LANES
@pytest.mark.parametrize("stands", STANDS)
def test_the_id_of_a_job_past_its_deadline_can_be_enqueued_again(
    seed: Seed, stands: str, lane: str
) -> None:
    STANDS[stands](seed, lane)
    seed.enqueue("behind", lane=lane)
    seed.advance(999)
    assert ("a",) == seed.enqueue("a", lane=lane).duplicates
    seed.advance(1)

    assert ("a",) == seed.enqueue("a", lane=lane).ids
    assert ["expired", "enqueued"] == events_of(seed.entries(), "a")[-2:]
    assert_consistent(seed.snapshot())
    assert ("a",) == seed.enqueue("a", lane=lane).duplicates
    assert {"a", "behind"} == {claim.id for claim in seed.claim().jobs}


def fail_once(seed: Seed) -> None:
    seed.fail(seed.running("a", expires_in_ms=1_000))


KEEPS: dict[str, Callable[[Seed], Any]] = {
    "it has failed, so it will be dead": fail_once,
    "its id is remembered after its end": lambda s: given_back(s, "", remember_ms=60_000),
    "it runs": lambda s: s.running("a", expires_in_ms=1_000),
}


@pytest.mark.parametrize("why", KEEPS)
def test_an_id_that_outlives_its_job_stays_a_duplicate_after_the_deadline_of_the_job(
    seed: Seed, why: str
) -> None:
    KEEPS[why](seed)
    seed.advance(1_000)
    before = seed.snapshot()["state"]

    assert ("a",) == seed.enqueue("a").duplicates
    assert before == seed.snapshot()["state"]


@pytest.mark.parametrize("call", [CALL, OTHER])
def test_a_remembered_id_can_be_enqueued_again_if_its_job_expired_before_any_claim(
    seed: Seed, call: str
) -> None:
    """The job never ran, and so had no effects."""
    first = seed.job("k", remember_ms=60_000, call=CALL, expires_in_ms=1_000)
    seed.enqueue(first)
    seed.advance(1_000)

    again = [seed.job("k", remember_ms=60_000, call=each) for each in (call, call)]
    found = seed.enqueue(*again)
    assert (("k",), ("k",), ()) == (found.ids, found.duplicates, found.mismatched)


def test_the_id_of_an_overdue_job_can_be_enqueued_again_once_the_id_is_no_longer_remembered(
    seed: Seed,
) -> None:
    given_back(seed, "", remember_ms=900)
    seed.advance(1_000)

    assert ("a",) == seed.enqueue("a").ids


def test_a_new_job_does_not_show_the_result_of_an_expired_job_with_the_same_id(seed: Seed) -> None:
    seed.enqueue("a", keep_ms=60_000, expires_in_ms=1_000)
    seed.advance(1_000)
    seed.enqueue("a", keep_ms=60_000)

    assert {} == seed.snapshot()["results"]
    assert_consistent(seed.snapshot())
    seed.complete(seed.claim_one("a"))
    assert seed.snapshot()["results"]["a"].startswith("succeeded ")


@pytest.mark.parametrize("how", ["keep", "replace"])
@pytest.mark.parametrize("first", ["the id", "the name"])
def test_a_job_past_its_deadline_frees_its_id_and_its_name_in_one_call(
    seed: Seed, first: str, how: str
) -> None:
    seed.enqueue(seed.job("a", unique=how, name=NAME, expires_in_ms=1_000))
    seed.advance(1_000)
    wanted = [seed.job("a"), seed.job("b", unique=how, name=NAME)]
    found = seed.enqueue(*(wanted if first == "the id" else wanted[::-1]))

    assert ({"a", "b"}, (), ()) == (set(found.ids), found.held, found.replaced)
    assert "b" == seed.snapshot()["slots"][f"unique|{NAME}"]
    assert_consistent(seed.snapshot())
    assert {"a", "b"} == {claim.id for claim in seed.claim().jobs}


def test_one_job_can_take_both_id_and_name_of_a_job_past_its_deadline(
    seed: Seed,
) -> None:
    seed.enqueue(seed.job("a", unique="keep", name=NAME, expires_in_ms=1_000))
    seed.advance(1_000)

    assert ("a",) == seed.enqueue(seed.job("a", unique="keep", name=NAME)).ids
    assert "a" == seed.snapshot()["slots"][f"unique|{NAME}"]


def test_a_throttle_window_continues_after_the_deadline_of_its_job(seed: Seed) -> None:
    rule = {"unique": "keep", "name": NAME, "window_ms": 5_000}
    seed.enqueue(seed.job("a", **rule, expires_in_ms=1_000))
    seed.advance(1_000)

    assert (("b", "a"),) == seed.enqueue(seed.job("b", **rule)).held
    assert ("a",) == seed.enqueue(seed.job("a")).ids


def test_the_expiry_of_an_overdue_job_is_logged_before_the_discard_of_a_new_job_with_its_id(
    seed: Seed,
) -> None:
    seed.cap("host=h", 0)
    seed.enqueue("a", expires_in_ms=1_000)
    seed.advance(1_000)

    found = seed.enqueue("a", lane="2+host=h", full="discard|host=h")
    assert (("a", "host=h"),) == found.discarded
    assert ["enqueued", "expired", "discarded"] == events_of(seed.entries(), "a")


def test_the_end_of_a_replaced_job_is_logged_before_the_discard_of_a_new_job_with_its_id(
    seed: Seed,
) -> None:
    """The log must not say that a job was discarded and was replaced afterwards."""
    seed.cap("host=h", 0)
    seed.enqueue(seed.job("old", unique="replace", name=NAME))

    found = seed.enqueue(
        seed.job("new", unique="replace", name=NAME),
        seed.job("old", lane="2+host=h", full="discard|host=h"),
    )
    assert ((("new", "old"),), (("old", "host=h"),)) == (found.replaced, found.discarded)
    assert ["enqueued", "replaced", "discarded"] == events_of(seed.entries(), "old")


@LANES
def test_one_call_can_enqueue_250_ids_again_whose_jobs_are_past_their_deadlines(
    seed: Seed, lane: str
) -> None:
    ids = [f"j-{n}" for n in range(250)]
    lanes = [f"{lane}{n}" if lane else "" for n in range(250)]
    both = list(zip(ids, lanes, strict=True))
    seed.enqueue(*(seed.job(i, lane=each, expires_in_ms=1_000) for i, each in both))
    seed.advance(1_000)

    assert tuple(ids) == seed.enqueue(*(seed.job(i, lane=each) for i, each in both)).ids
