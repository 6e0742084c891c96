"""Bugs of caps that this queue or another queue once had. Each docstring describes a bug that would fail the test."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from rq_core.app.limits.lane_assignment import full_rules
from rq_core.model.events import Entry
from rq_core.model.table.machine import Event
from tests.kit.lanes import holders_of
from tests.kit.seed import LEASE_MS, Seed
from tests.kit.snapshots import fields_of, lines_of
from tests.rigs.judge.caps import most_running, unproved

CAPS = pytest.mark.parametrize("cap", [1, 2, 3, 10])


def ids(claimed: Any) -> list[str]:
    return [c.id for c in claimed.jobs]


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Make several calls at the same time, each on its own connection."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [made.result() for made in [pool.submit(call) for call in calls]]


def holders(seed: Seed, scope: str) -> set[str]:
    return holders_of(seed.snapshot())[scope]


# What others shipped.


@CAPS
def test_concurrent_claims_do_not_exceed_a_cap(redis_url: str, cap: int) -> None:
    """The bug: two claims both read that one place was free, before either claim took the place."""
    crowd = [Seed(redis_url, name=f"c-{n}") for n in range(4)]
    seed = crowd[0]
    seed.cap("task=t", cap)
    seed.enqueue(*(f"j-{n}" for n in range(120)), scopes=["task=t"])

    def work(who: Seed) -> None:
        while True:
            jobs = who.claim(3, worker=who.calls.delivery.name).jobs
            if jobs:
                who.complete(*jobs, worker=who.calls.delivery.name)
            elif not who.snapshot()["jobs"]:
                return

    at_once(*(lambda who=who: work(who) for who in crowd))

    entries = seed.entries()
    assert unproved(entries) == []
    assert ended(entries) == 120
    assert most_running(entries) <= cap
    seed.assert_consistent()
    for who in crowd:
        who.client.close()
        who.control.close()


def ended(entries: list[Entry]) -> int:
    return sum(len(e.jobs) for e in entries if e.event is Event.SUCCEEDED)


@CAPS
@pytest.mark.parametrize("scope", ["task=t", "tenant=x", "queue"])
@pytest.mark.parametrize("limit", [1, 100])
def test_a_cap_of_n_admits_n_jobs(seed: Seed, cap: int, scope: str, limit: int) -> None:
    """The bug: a job counted itself as a holder, and the count was compared with the cap by >=. So N-1 jobs ran."""
    seed.cap(scope.replace("=x", ""), cap)
    scopes = ["task=t", "tenant=x"]
    seed.enqueue(*(f"j-{n:02}" for n in range(cap + 2)), scopes=scopes)

    claimed = [job_id for _ in range(cap + 2) for job_id in ids(seed.claim(limit))]

    assert claimed == [f"j-{n:02}" for n in range(cap)]
    assert most_running(seed.entries()) == cap


def test_a_job_that_one_full_cap_refuses_holds_no_place_in_its_other_caps(seed: Seed) -> None:
    """The bug: one scope of a job refused it. The job still held a place in its other scope, until a timeout."""
    seed.cap("task=t", 2)
    seed.cap("tenant", 1)
    seed.enqueue("x-1", "x-2", scopes=["task=t", "tenant=x"])
    assert ids(seed.claim()) == ["x-1"]

    for _ in range(3):
        assert ids(seed.claim()) == []

    assert holders(seed, "task=t") == {"x-1"}
    seed.enqueue("y-1", "y-2", scopes=["task=t", "tenant=y"])
    assert ids(seed.claim()) == ["y-1"]


def test_the_rollback_of_a_claim_at_once_frees_all_places_in_caps_that_the_claim_held(
    seed: Seed,
) -> None:
    """The bug: a claim that was rolled back counted as a holder until its lease ended."""
    seed.cap("task=t", 1)
    seed.cap("tenant", 1)
    seed.enqueue("x-1", scopes=["task=t", "tenant=x"])
    (claim,) = seed.claim().jobs

    seed.rollback(claim)

    assert seed.snapshot()["holders"] == {}
    assert ids(seed.claim()) == ["x-1"]


def test_a_job_that_a_cap_refuses_keeps_its_attempts_and_its_place_in_line(seed: Seed) -> None:
    """The bug: each refusal by a cap spent an attempt of the job, or let later jobs overtake it."""
    seed.cap("task=t", 1)
    seed.enqueue("first", "second", "third", scopes=["task=t"], attempts=1)
    (first,) = seed.claim().jobs
    before, log = lines_of(seed.snapshot()), len(seed.entries())

    for _ in range(20):
        seed.advance(1_000)
        seed.claim()

    assert lines_of(seed.snapshot()) == before
    assert len(seed.entries()) == log
    seed.complete(first)
    assert ids(seed.claim()) == ["second"]


def test_a_rolled_back_job_keeps_its_attempts_and_its_place_in_line(seed: Seed) -> None:
    """The bug: a rollback spent an attempt, so that a waiting job died in the end. Or it put the job at the end of the
    line."""
    seed.cap("task=t", 1)
    seed.enqueue("first", "second", scopes=["task=t"], attempts=1)
    for _ in range(5):
        first = seed.claim_one("first")
        seed.rollback(first)

    line = fields_of(seed.state("first") or "")
    assert (line["state"], line["seq"], line.get("failed")) == ("ready", "1", None)
    assert ids(seed.claim()) == ["first"]


def test_one_of_two_concurrent_claims_takes_a_place_in_a_cap_that_both_claims_try_to_take(
    redis_url: str,
) -> None:
    """The bug: each of two claims took a scope that the other one needed. Both gave up, and a free place stayed
    empty."""
    with Seed(redis_url, name="c-1") as one, Seed(redis_url, name="c-2") as other:
        one.cap("tenant", 1)
        one.cap("host", 1)
        for n in range(100):
            one.enqueue(f"a-{n}", f"b-{n}", scopes=["tenant=x", "host=h"])

            took = at_once(lambda: one.claim(1), lambda: other.claim(1))

            (claim,) = [c for claimed in took for c in claimed.jobs]
            assert ids(one.claim()) == []
            one.complete(claim)
            one.complete(*one.claim().jobs)
        assert unproved(one.entries()) == []


@pytest.mark.slow
def test_a_job_that_is_enqueued_while_a_place_in_a_cap_becomes_free_wakes_a_worker(
    redis_url: str,
) -> None:
    """The bug: if the last holder of a place ended at the wrong moment, no worker was woken for minutes.

    At this moment a worker had found the scope full, and had not yet begun to wait for a token.
    """
    with Seed(redis_url, name="c-1") as worker, Seed(redis_url, name="c-2") as producer:
        worker.cap("task=t", 1)
        worker.enqueue("j-0", scopes=["task=t"])
        for n in range(300):
            (holder,) = worker.claim().jobs
            worker.take_token()

            new = worker.job(f"j-{n + 1}", scopes=["task=t"])
            at_once(partial(worker.complete, holder), partial(producer.enqueue, new))

            assert worker.tokens() == 1
        worker.assert_consistent()


@pytest.mark.parametrize("how", ["complete", "fail", "rollback"])
def test_a_settlement_by_a_worker_without_the_claim_frees_no_place_in_a_cap(
    seed: Seed, how: str
) -> None:
    """The bug: a worker whose lease had expired freed a place at each report of its job. So a cap of 1 admitted eleven
    jobs."""
    seed.cap("task=t", 1)
    seed.enqueue(*(f"j-{n:02}" for n in range(12)), scopes=["task=t"])
    (zombie,) = seed.claim(1, worker="w-zombie").jobs
    seed.live(LEASE_MS)
    assert ids(seed.claim(worker="w-2")) == ["j-00"]

    for _ in range(11):
        outcome = getattr(seed, how)(zombie, worker="w-zombie")
        assert outcome == {"j-00": "stale"}
        assert ids(seed.claim(worker="w-2")) == []
        assert holders(seed, "task=t") == {"j-00"}

    refused = [e for e in seed.entries() if e.event is Event.SETTLEMENT_REFUSED]
    assert len(refused) == 11
    assert most_running(seed.entries()) == 1


@pytest.mark.parametrize("how", ["complete", "fail", "rollback"])
def test_a_claim_that_is_settled_twice_frees_one_place_in_a_cap(seed: Seed, how: str) -> None:
    """The bug: each settlement of the same claim increased a counter of free places."""
    seed.cap("task=t", 1)
    seed.enqueue(*(f"j-{n}" for n in range(4)), scopes=["task=t"])
    (first,) = seed.claim().jobs

    for _ in range(11):
        getattr(seed, how)(first, first)

    assert len(ids(seed.claim())) == 1
    assert ids(seed.claim()) == []


def test_a_place_in_a_cap_is_held_while_its_job_runs(seed: Seed) -> None:
    """The bug: places expired by themselves. If a job ran for longer, another job ran at the same time."""
    seed.cap("task=t", 1)
    seed.enqueue("long", "next", scopes=["task=t"])
    (held,) = seed.claim().jobs
    for _ in range(400):
        seed.advance(LEASE_MS // 3)
        assert seed.extend([held]).lost == ()
        assert ids(seed.claim(worker="w-2")) == []

    assert holders(seed, "task=t") == {"long"}
    assert seed.complete(held) == {}
    assert ids(seed.claim()) == ["next"]


def test_a_place_in_a_cap_is_held_until_a_script_ends_the_claim(seed: Seed) -> None:
    """The bug: a place counted as free when the lease had expired, although no script had ended the claim yet."""
    seed.cap("task=t", 1)
    seed.enqueue("long", scopes=["task=t"])
    (held,) = seed.claim().jobs
    seed.advance(10 * LEASE_MS)
    seed.enqueue("next", scopes=["task=t"])

    # The whole fleet stood still, so nobody is reaped yet; the claim is in force, and its slot is taken.
    assert ids(seed.claim(worker="w-2")) == []
    assert holders(seed, "task=t") == {"long"}
    assert seed.complete(held) == {}
    assert ids(seed.claim(worker="w-2")) == ["next"]
    assert most_running(seed.entries()) == 1


# What went wrong here.


def test_one_call_can_discard_a_job_and_then_enqueue_another_job_with_the_same_id(
    seed: Seed,
) -> None:
    """The bug: the log had the enqueue before the discard. So the log said that the running job was gone."""
    seed.cap("task=t", 0)
    full = full_rules([("discard", "task=t")])

    told = seed.enqueue(
        seed.job("j", scopes=["task=t"], full=full),
        seed.job("j", scopes=["task=t"]),
    )

    assert (told.ids, told.discarded) == (("j",), (("j", "task=t"),))


def test_one_claim_takes_two_jobs_of_a_lane_though_the_lane_is_empty_between_them(
    seed: Seed,
) -> None:
    """The bug: a claim emptied a lane, filled it and emptied it again. The lane was then wrongly blocked.

    Its job waited although its scopes had room, and no later call would have opened the lane (I10).
    """
    seed.cap("task=t", 2)
    seed.enqueue("first", "second", scopes=["tenant=x"])

    claimed = seed.claim()

    assert ids(claimed) == ["first", "second"]


def test_a_lane_that_is_emptied_in_a_claim_blocks_no_other_lane(seed: Seed) -> None:
    """The bug: a lane that the claim had emptied still blocked another lane. So a younger job ran first."""
    seed.cap("task=t", 2)
    seed.enqueue("first", scopes=["tenant=x"], priority="critical")
    seed.enqueue("second", scopes=["tenant=x"])
    seed.enqueue("third", task="u")

    assert ids(seed.claim(2)) == ["first", "second"]


def test_a_fair_key_gains_no_credit_while_it_waits_for_a_cap(seed: Seed) -> None:
    """The bug: the virtual time of a fair queue's key did not advance while its lane was blocked.

    When the lane was open again, only this key was served until its time had caught up. Jobs of other keys waited.
    """
    seed.configure(fair=1)
    seed.cap("task=t", 0)
    seed.enqueue(*(f"x-{n}" for n in range(20)), scopes=["task=t", "fair=x"])
    seed.enqueue(*(f"y-{n}" for n in range(30)), task="u", scopes=["fair=y"])
    seed.complete(*seed.claim().jobs)
    seed.enqueue(*(f"y-{n}" for n in range(30)), task="u", scopes=["fair=y"])
    seed.claim(1)

    seed.cap("task=t", "none")
    seed.enqueue("z-0", task="u", scopes=["fair=z"])

    assert "z-0" in ids(seed.claim(4))


def test_a_raised_rate_applies_at_once_to_a_key_without_waiting_jobs(seed: Seed) -> None:
    """The bug: an exhausted rate was raised while no job waited. It still admitted the next job by its old limit.

    With a window of a day, this job waited a day.
    """
    seed.cap("tenant@10s", "1/10000ms/1")
    seed.enqueue("first", "second", scopes=["tenant@10s=x"])
    assert ids(seed.claim()) == ["first"]
    seed.cancel("second")

    seed.cap("tenant@10s", "100/10000ms/100")

    seed.enqueue("third", scopes=["tenant@10s=x"])
    assert seed.claim().next_due_ms == seed.now + 100
    seed.advance(100)
    assert ids(seed.claim()) == ["third"]


def test_a_raised_rate_applies_at_once_to_a_job_that_waits_for_a_full_cap(seed: Seed) -> None:
    """The bug: a rate was raised while its jobs waited for a cap. It still admitted the next job by its old limit."""
    seed.cap("tenant@10s", "1/10000ms/1")
    seed.cap("host", 0)
    seed.enqueue("first", "second", scopes=["tenant@10s=x"])
    seed.enqueue("third", scopes=["host=h", "tenant@10s=x"])
    assert ids(seed.claim()) == ["first"]
    seed.cancel("second")
    seed.cap("tenant@10s", "100/10000ms/100")

    seed.cap("host", 1)

    assert seed.claim().next_due_ms == seed.now + 100
    seed.advance(100)
    assert ids(seed.claim()) == ["third"]


def test_a_rule_that_discards_jobs_above_a_cap_counts_only_the_jobs_of_its_own_scope(
    seed: Seed,
) -> None:
    """The bug: a rule to discard jobs counted the jobs of one scope. The count was then used for all scopes of the
    job."""
    seed.cap("task=t", 5)
    seed.cap("tenant", 1)
    seed.enqueue("a", "b", scopes=["task=t"])
    assert len(seed.claim().jobs) == 2

    seed.enqueue("c", scopes=["tenant=x"], full="discard|tenant=x")

    assert ids(seed.claim()) == ["c"]


def test_places_in_a_cap_that_a_call_frees_can_be_taken_in_the_same_call(
    seed: Seed,
) -> None:
    """The bug: the jobs of expired leases still counted as holders when their call checked their scopes."""
    seed.cap("tenant", 3)
    seed.enqueue("a", "b", scopes=["tenant=x"])
    assert ids(seed.claim()) == ["a", "b"]
    seed.live(31_000)

    assert sorted(ids(seed.claim())) == ["a", "b"]


@pytest.mark.parametrize("how", ["cancel", "restore"])
def test_if_one_call_opens_and_empties_a_lane_the_next_lane_of_the_same_scope_opens(
    seed: Seed, how: str
) -> None:
    """The bug: one call emptied two lanes of a scope, and did not open the third lane.

    Its jobs waited, although the scope had room, until another call touched the scope.
    """
    seed.cap("tenant", 1)
    seed.enqueue(
        seed.job("a", scopes=["tenant=x"]),
        seed.job("b", scopes=["task=t", "tenant=x"]),
        seed.job("c", scopes=["host=h", "tenant=x"]),
    )

    if how == "cancel":
        seed.cancel("a", "b")
        seed.assert_consistent()
    else:
        seed.restore(seed.revived("a"), seed.revived("b"))

    assert ids(seed.claim()) == ["c"]


@pytest.mark.damaged
def test_a_claim_skips_jobs_without_a_state_line_at_the_head_of_a_lane(
    seed: Seed,
) -> None:
    """The bug: a claim failed with a Lua error if it met two unreadable jobs in a lane, one after the other."""
    seed.cap("tenant", 5)
    seed.enqueue("a", "b", "c", scopes=["tenant=x"])
    seed.control.hdel(seed.keys("state"), "a", "b")

    assert ids(seed.claim()) == ["c"]


@pytest.mark.parametrize("place", [0, 10**15 - 1])
def test_a_job_with_an_entry_in_a_wrong_lane_is_claimed_only_from_its_own_lane(
    seed: Seed, place: int
) -> None:
    """The bug: a job had an entry in the wrong lane. A claim took it there, and counted it in the scopes of that lane.

    Checks a wrong entry before the lane's own entries, and one after them.
    """
    seed.cap("tenant", 5)
    seed.enqueue("a", "c", scopes=["tenant=x"])
    seed.enqueue("b", scopes=["tenant=y"])
    seed.control.zadd(seed.keys("waiting"), {f"2+tenant=x|{place:016}|b": 0})

    claimed = ids(seed.claim())

    assert sorted(claimed) == ["a", "b", "c"]
    assert sorted(seed.snapshot()["holders"]) == ["tenant=x|a", "tenant=x|c", "tenant=y|b"]
