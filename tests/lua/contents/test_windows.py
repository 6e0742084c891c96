"""Unique names with a time window: Throttle holds a name until an instant, and Debounce until the first claim."""

from typing import Any

import pytest

from tests.kit.consistency import assert_consistent
from tests.kit.seed import LEASE_MS, Seed, events_of

NAME = "t/user=7"
FIELD = f"unique|{NAME}"
MARK = f"name|{NAME}"
WINDOW_MS = 60_000
AFTER_MS = 5_000
MOST_MS = 20_000
LANES = pytest.mark.parametrize("lane", ["", "2+host=h"])


def throttle(seed: Seed, *ids: str, **options: Any) -> Any:
    made = {"unique": "keep", "name": NAME, "window_ms": WINDOW_MS, **options}
    return seed.enqueue(*(seed.job(i, **made) for i in ids))


def debounce(
    seed: Seed, *ids: str, after_ms: int = AFTER_MS, most_ms: int = MOST_MS, **options: Any
) -> Any:
    made = {"unique": "replace", "name": NAME, "after_ms": after_ms, "most_ms": most_ms, **options}
    return seed.enqueue(*(seed.job(i, **made) for i in ids))


def holder(seed: Seed) -> str | None:
    found = seed.snapshot()["slots"].get(FIELD)
    return None if found is None else str(found)


def due(seed: Seed, job_id: str) -> int:
    return int((seed.state(job_id) or "").partition(" due=")[2].partition(" ")[0])


# Throttle.


def test_enqueue_writes_the_throttle_window_of_a_job_into_the_state_line_the_event_and_the_key_slots(
    seed: Seed,
) -> None:
    throttle(seed, "a")
    ends = seed.now + WINDOW_MS
    (told,) = [e for e in seed.entries() if e.event == "enqueued"]

    assert f"ready task=t unique={NAME} seq=1 stands=until:{ends} since={seed.now}" == seed.state(
        "a"
    )
    assert (NAME, f"until:{ends}") == (
        told.jobs[0].fields["unique_name"],
        told.jobs[0].fields["name_stands"],
    )
    assert f"a {ends}" == holder(seed)
    assert ends == seed.snapshot()["expiring"][MARK]


@LANES
def test_calls_within_a_throttle_window_are_answered_with_the_first_job_of_the_window(
    seed: Seed, lane: str
) -> None:
    throttle(seed, "a", lane=lane)
    assert (("b", "a"),) == throttle(seed, "b", lane=lane).held
    seed.complete(*seed.claim().jobs)
    assert (("c", "a"),) == throttle(seed, "c", lane=lane).held
    seed.advance(WINDOW_MS - 1)
    seed.claim(0)
    assert (("d", "a"),) == throttle(seed, "d", lane=lane).held
    seed.advance(1)

    assert ("e",) == throttle(seed, "e", lane=lane).ids
    assert f"e {seed.now + WINDOW_MS}" == holder(seed)


@pytest.mark.parametrize("end", ["succeeds", "dies", "is cancelled", "expires", "runs"])
def test_a_throttled_name_is_held_until_its_window_ends_even_if_the_job_ends_earlier(
    seed: Seed, end: str
) -> None:
    throttle(seed, "a", expires_in_ms=10_000)
    if end == "expires":
        seed.advance(10_000)
        seed.claim(0)
    elif end == "is cancelled":
        seed.cancel("a")
    else:
        (claim,) = seed.claim().jobs
        if end == "succeeds":
            seed.complete(claim)
        elif end == "dies":
            seed.fail(claim, verdict="final")
    assert (("b", "a"),) == throttle(seed, "b").held
    assert_consistent(seed.snapshot())
    seed.live(WINDOW_MS)

    assert ("b",) == throttle(seed, "b").ids


def test_a_claim_forgets_unique_names_that_have_expired(seed: Seed) -> None:
    throttle(seed, "a")
    seed.complete(*seed.claim().jobs)
    seed.advance(WINDOW_MS)
    seed.claim(0)

    assert holder(seed) is None
    assert MARK not in seed.snapshot()["expiring"]


def test_removing_expired_unique_names_keeps_a_name_that_another_job_has_taken_in_the_meantime(
    seed: Seed,
) -> None:
    """A deploy has changed the task from the option Throttle to the option Unique."""
    throttle(seed, "a")
    seed.complete(*seed.claim().jobs)
    seed.advance(WINDOW_MS)
    seed.enqueue(seed.job("b", name=NAME))
    assert_consistent(seed.snapshot())
    # As a queue that was mended by hand may have it.
    seed.control.zadd(seed.keys("expiring"), {MARK: seed.now})
    seed.advance(1_000)
    seed.claim(0)

    assert "b" == holder(seed)


def test_the_end_of_a_job_does_not_end_the_throttle_window_of_a_later_job(seed: Seed) -> None:
    throttle(seed, "a")
    (claim,) = seed.claim().jobs
    seed.live(WINDOW_MS)
    seed.extend([claim])
    throttle(seed, "b")
    window = holder(seed)
    seed.complete(claim)

    assert f"b {seed.now + WINDOW_MS}" == window == holder(seed)


def test_a_requeued_job_whose_throttle_window_has_ended_takes_no_unique_name(seed: Seed) -> None:
    throttle(seed, "a")
    seed.fail(*seed.claim().jobs, verdict="final")
    seed.live(WINDOW_MS)
    throttle(seed, "b")
    window = holder(seed)

    assert {"a": "requeued"} == seed.requeue("a")
    assert window == holder(seed)


def test_a_job_whose_name_has_a_throttle_window_is_not_replaced(seed: Seed) -> None:
    """A deploy has changed the task from the option Throttle to the option Debounce."""
    throttle(seed, "a")

    assert (("b", "a"),) == debounce(seed, "b").held


def test_only_the_first_of_many_throttled_jobs_in_a_call_is_enqueued(seed: Seed) -> None:
    found = throttle(seed, *(f"j-{n}" for n in range(250)))

    assert ("j-0",) == found.ids
    assert 249 == len(found.held)


@pytest.mark.parametrize("ended", [False, True])
def test_the_name_of_a_throttle_window_can_be_freed_after_the_end_of_its_job(
    seed: Seed, ended: bool
) -> None:
    throttle(seed, "a")
    if ended:
        seed.complete(*seed.claim().jobs)

    assert {NAME: "a"} == seed.free(NAME)
    assert ["a"] == [e.jobs[0].job_id for e in seed.entries() if e.event == "freed"]
    assert MARK not in seed.snapshot()["expiring"]
    assert_consistent(seed.snapshot())
    assert ("b",) == throttle(seed, "b").ids


def test_freeing_a_name_whose_throttle_window_has_expired_returns_no_job(seed: Seed) -> None:
    throttle(seed, "a")
    seed.advance(WINDOW_MS)

    assert {NAME: None} == seed.free(NAME)


@pytest.mark.parametrize(("until_ms", "stands"), [(1_000, False), (9_999_999_999_999, True)])
@pytest.mark.damaged
def test_unique_names_that_have_expired_are_not_listed(
    seed: Seed, until_ms: int, stands: bool
) -> None:
    seed.control.hset(seed.keys("slots"), FIELD, f"a {until_ms}")
    found = seed.client.run(seed.client.calls.names.held(seed.queue))

    assert [(NAME, "a", until_ms)] * stands == [
        (each.name, each.job_id, each.until_ms) for each in found
    ]


@pytest.mark.parametrize("over", [False, True])
def test_a_restored_job_gets_the_rest_of_its_throttle_window(seed: Seed, over: bool) -> None:
    ends = seed.now + WINDOW_MS
    seed.advance(WINDOW_MS if over else 1_000)
    lost = seed.lost("a", unique_name=NAME, name_stands=f"until:{ends}")

    assert {"a": "restored"} == seed.restore(lost)
    assert (None if over else f"a {ends}") == holder(seed)


def test_a_lost_job_is_not_restored_into_the_throttle_window_of_another_job(seed: Seed) -> None:
    ends = seed.now + WINDOW_MS
    throttle(seed, "b")
    seed.complete(*seed.claim().jobs)
    lost = seed.lost("a", unique_name=NAME, name_stands=f"until:{ends}")

    assert {"a": "held"} == seed.restore(lost)
    assert seed.state("a") is None


# Debounce.


def test_each_debounced_call_delays_the_job_up_to_the_latest_instant(seed: Seed) -> None:
    first = seed.now
    debounce(seed, "a")
    assert first + AFTER_MS == due(seed, "a")
    old = "a"
    for job_id in "bcdefg":
        seed.advance(4_000)
        found = debounce(seed, job_id)
        assert ((job_id, old),) == found.replaced
        assert seed.state(old) is None
        if seed.now < first + MOST_MS:
            assert min(seed.now + AFTER_MS, first + MOST_MS) == due(seed, job_id)
        else:
            assert (seed.state(job_id) or "").startswith("ready ")
        assert_consistent(seed.snapshot())
        old = job_id

    assert ["g"] == [claim.id for claim in seed.claim().jobs]
    assert ["enqueued", "replaced"] == events_of(seed.entries(), "a")


def test_a_debounced_job_runs_when_its_delay_has_passed_after_the_last_call(seed: Seed) -> None:
    debounce(seed, "a")
    seed.advance(3_000)
    debounce(seed, "b")
    seed.advance(AFTER_MS - 1)
    assert not seed.claim().jobs
    seed.advance(1)

    assert ["b"] == [claim.id for claim in seed.claim().jobs]


@LANES
def test_the_first_claim_frees_a_debounced_name(seed: Seed, lane: str) -> None:
    debounce(seed, "a", lane=lane)
    seed.advance(AFTER_MS)
    seed.claim_one("a")

    assert holder(seed) is None
    assert_consistent(seed.snapshot())
    found = debounce(seed, "b", lane=lane)
    assert (("b",), ()) == (found.ids, found.replaced)
    assert "b" == holder(seed)


@LANES
@pytest.mark.parametrize("how", ["fails", "is given back", "loses its worker", "is requeued"])
def test_a_debounced_job_that_was_claimed_does_not_take_its_name_again(
    seed: Seed, lane: str, how: str
) -> None:
    debounce(seed, "a", lane=lane, after_ms=0, most_ms=0)
    claim = seed.claim_one("a")
    if how == "fails":
        seed.fail(claim)
    elif how == "is given back":
        seed.rollback(claim)
    elif how == "is requeued":
        seed.fail(claim, verdict="final")
        seed.requeue("a")
    else:
        seed.live(LEASE_MS)
        seed.claim(0)
    assert holder(seed) is None
    found = debounce(seed, "b", lane=lane, after_ms=0, most_ms=0)
    assert (("b",), ()) == (found.ids, found.replaced)
    assert_consistent(seed.snapshot())
    seed.complete(seed.claim_one("a"))

    assert "b" == holder(seed)


def test_a_cancelled_debounced_job_frees_its_name(seed: Seed) -> None:
    debounce(seed, "a")
    seed.cancel("a")

    assert holder(seed) is None


def test_several_debounced_jobs_of_a_call_do_not_delay_the_job_past_its_latest_instant(
    seed: Seed,
) -> None:
    debounce(seed, "a")
    first = seed.now
    seed.advance(MOST_MS - 1_000)
    found = debounce(seed, "b", "c", "d")

    assert (("d",), (("d", "a"),)) == (found.ids, found.replaced)
    assert [("b", "d"), ("c", "d")] == list(found.held)
    assert first + MOST_MS == due(seed, "d")


@LANES
def test_frequent_calls_do_not_delay_a_debounced_job_past_its_latest_instant(
    seed: Seed, lane: str
) -> None:
    """The latest instant has passed. So each new job gets the place in line of the job that it replaces."""
    debounce(seed, "a", lane=lane, after_ms=0, most_ms=0)
    for n in range(5):
        seed.enqueue(f"other-{n}", lane="2+host=other" if lane else "")
        debounce(seed, f"b-{n}", lane=lane, after_ms=0, most_ms=0)
        assert_consistent(seed.snapshot())

    assert ["b-4", "other-0"] == [claim.id for claim in seed.claim(2).jobs]


@LANES
@pytest.mark.parametrize("claims", [0, 1])
def test_a_debounced_job_is_restored_with_its_name_only_if_it_was_never_claimed(
    seed: Seed, claims: int, lane: str
) -> None:
    stands = f"claim:{seed.now + MOST_MS}"
    lost = [
        seed.lost(i, unique_name=NAME, name_stands=stands, claims=claims, lane=lane or None)
        for i in ("a", "b")
    ]

    assert {"a": "restored", "b": "restored" if claims else "held"} == seed.restore(*lost)
    assert (None if claims else "a") == holder(seed)


@pytest.mark.parametrize("call", ["=", f"={'0' * 32}"])
def test_an_enqueued_event_has_the_remembered_window_and_the_throttle_window(
    seed: Seed, call: str
) -> None:
    throttle(seed, "a", remember_ms=WINDOW_MS, call=call)
    (told,) = [e for e in seed.entries() if e.event == "enqueued"]
    fields = told.jobs[0].fields

    assert f"until:{seed.now + WINDOW_MS}" == fields["name_stands"]
    assert (NAME, seed.now + WINDOW_MS) == (fields["unique_name"], fields["once_ms"])
    assert call.removeprefix("=") == (fields["call_digest"] or "")
