"""Caps: which jobs may run, where other jobs wait, and in which order they run."""

from tests.kit.lanes import breaches, holders_of
from tests.kit.seed import Seed


def ids(claimed: object) -> list[str]:
    return [c.id for c in claimed.jobs]  # type: ignore[attr-defined]


def test_a_cap_of_one_admits_one_job(seed: Seed) -> None:
    seed.cap("task=t", 1)
    seed.enqueue(*(seed.job(f"j-{n}", scopes=["task=t"]) for n in range(3)))

    first = seed.claim()
    again = seed.claim()

    assert ids(first) == ["j-0"]
    assert ids(again) == []
    assert not again.more


def test_the_next_job_starts_when_the_first_ends(seed: Seed) -> None:
    seed.cap("task=t", 1)
    seed.enqueue(*(seed.job(f"j-{n}", scopes=["task=t"]) for n in range(3)))
    (first,) = seed.claim().jobs
    seed.claim()
    seed.take_token()

    seed.complete(first)

    assert seed.tokens() == 1
    assert ids(seed.claim()) == ["j-1"]


def test_the_cap_of_a_task_and_the_cap_of_a_key_are_both_enforced(seed: Seed) -> None:
    """Each of ten tenants has a cap of 1, and the task has a cap of 3. The oldest jobs run first."""
    seed.cap("task=t", 3)
    seed.cap("tenant", 1)
    for n in range(20):
        seed.enqueue(seed.job(f"j-{n:02}", scopes=["task=t", f"tenant=t{n % 10}"]))
    served = []
    running = list(seed.claim().jobs)
    while running:
        assert breaches(seed.snapshot()) == []
        assert len(holders_of(seed.snapshot())["task=t"]) == len(running) <= 3
        first = running.pop(0)
        served.append(first.id)
        seed.complete(first)
        running += seed.claim().jobs
        seed.assert_consistent()

    assert served == [f"j-{n:02}" for n in range(20)]


def test_a_full_scope_blocks_only_the_jobs_that_have_this_scope(seed: Seed) -> None:
    seed.cap("tenant", 1)
    for n in range(50):
        seed.enqueue(seed.job(f"a-{n:02}", scopes=["tenant=a"]))
    seed.enqueue(seed.job("b", scopes=["tenant=b"]), "plain")

    assert ids(seed.claim()) == ["a-00", "b", "plain"]


def test_a_rate_admits_its_burst_and_then_one_job_per_interval(seed: Seed) -> None:
    seed.cap("tenant@10s", "5/10000ms/2")
    for n in range(6):
        seed.enqueue(seed.job(f"j-{n}", scopes=["tenant@10s=a"]))

    first = seed.claim()

    assert ids(first) == ["j-0", "j-1"]
    assert first.next_due_ms == seed.now + 2_000
    seed.assert_consistent()
    seed.advance(1_999)
    assert ids(seed.claim()) == []
    seed.advance(1)
    assert ids(seed.claim()) == ["j-2"]


def test_a_job_can_have_rates_with_several_windows(seed: Seed) -> None:
    """Checks a rate per second together with a rate per day."""
    seed.cap("day@86400s", "3/86400000ms/3")
    seed.cap("second@1s", "1/1000ms/1")
    seed.enqueue(*(f"j-{n}" for n in range(4)), scopes=["day@86400s=x", "second@1s=x"])

    begun = []
    for _ in range(5):
        claimed = seed.claim()
        begun.append([c.id for c in claimed.jobs])
        # Asked again within the second: it refuses.
        assert [seed.claim().jobs for _ in range(3)] == [(), (), ()]
        seed.assert_consistent()
        seed.advance(1_000)

    assert begun == [["j-0"], ["j-1"], ["j-2"], [], []]
    seed.advance(86_400_000 // 3 - 5_000)
    assert [c.id for c in seed.claim().jobs] == ["j-3"]


def test_a_job_that_one_of_its_rates_refuses_uses_nothing_of_its_other_rate(
    seed: Seed,
) -> None:
    """The rate per day admits two jobs. The rate per second refuses the second job, so the third job runs in its
    place."""
    seed.cap("day@86400s", "2/86400000ms/2")
    seed.cap("second@1s", "1/1000ms/1")
    seed.enqueue("first", "second", scopes=["day@86400s=x", "second@1s=x"])
    seed.enqueue("third", "fourth", scopes=["day@86400s=x"])

    assert [c.id for c in seed.claim().jobs] == ["first", "third"]


def test_a_first_cap_set_on_a_task_counts_running_jobs_and_applies_to_waiting_jobs(
    seed: Seed,
) -> None:
    seed.enqueue(*(f"j-{n}" for n in range(5)))
    running = seed.claim(2).jobs

    seed.cap("task=t", 3)

    seed.assert_consistent()
    assert len(holders_of(seed.snapshot())["task=t"]) == 2
    assert ids(seed.claim()) == ["j-2"]
    seed.assert_consistent()
    seed.complete(*running)
    assert ids(seed.claim()) == ["j-3", "j-4"]


def test_a_raised_cap_admits_the_next_jobs(seed: Seed) -> None:
    seed.cap("tenant", 1)
    seed.enqueue(*(seed.job(f"j-{n}", scopes=["tenant=a"]) for n in range(5)))
    seed.claim()
    seed.claim()
    seed.take_token()

    seed.cap("tenant", 3)

    assert seed.tokens() == 1
    assert ids(seed.claim()) == ["j-1", "j-2"]


def test_a_cap_of_the_queue_limits_all_jobs(seed: Seed) -> None:
    seed.cap("queue", 2)
    seed.enqueue(*(f"j-{n}" for n in range(5)))
    first = seed.claim()

    assert ids(first) == ["j-0", "j-1"]
    assert not first.more
    seed.take_token()
    seed.complete(first.jobs[0])
    assert seed.tokens() == 1
    assert ids(seed.claim()) == ["j-2"]


def test_a_fair_queue_serves_its_keys_in_turn(seed: Seed) -> None:
    seed.configure(fair=1)
    seed.enqueue(*(seed.job(f"a-{n}", scopes=["fair=a"]) for n in range(5)))
    seed.enqueue(*(seed.job(f"b-{n}", scopes=["fair=b"]) for n in range(2)))

    served = [seed.claim(1).jobs[0].id for _ in range(7)]

    assert served == ["a-0", "b-0", "a-1", "b-1", "a-2", "a-3", "a-4"]


def test_each_claim_advances_the_virtual_time_of_its_fair_key_in_redis(seed: Seed) -> None:
    """Each key of a fair queue has a virtual time, in Redis' key ``fair``. The key with the earliest time is served
    next."""
    seed.configure(fair=1)
    seed.enqueue(*(seed.job(f"a-{n}", scopes=["fair=a"]) for n in range(2)))

    times = []
    for _ in range(2):
        seed.claim(1)
        times.append(seed.control.zscore(seed.keys("fair"), "a") or 0.0)

    assert 0 < times[0] < times[1]


def test_a_lane_of_high_priority_is_served_before_an_open_lane_of_low_priority(
    seed: Seed,
) -> None:
    """One call enqueues all jobs. The lane of high priority is served before the open lane of low priority."""
    seed.cap("tenant", 1)
    seed.enqueue(
        seed.job("low", priority="low", scopes=["tenant=a"]),
        seed.job("high", priority="high", scopes=["tenant=a"]),
        "plain",
    )

    assert [ids(seed.claim(1)) for _ in range(2)] == [["high"], ["plain"]]


def test_a_registered_policy_is_stored_and_logged_once(seed: Seed) -> None:
    first = seed.client.run(seed.client.calls.caps.register(seed.queue, {"t": '{"caps":[]}'}))
    again = seed.client.run(seed.client.calls.caps.register(seed.queue, {"t": '{"caps":[]}'}))
    seed.client.run(seed.client.calls.caps.register(seed.queue, {"t": '{"caps":[1]}'}))

    assert (first, again) == ({"t": "changed"}, {"t": "same"})
    assert seed.client.run(seed.client.calls.caps.policy(seed.queue, "t")) == '{"caps":[1]}'
    told = [e.data for e in seed.entries() if e.event == "policy_changed"]
    assert [(d["field"], d["old"], d["new"]) for d in told] == [
        ("task=t", None, "registered"),
        ("task=t", "registered", "registered"),
    ]


def test_a_rule_to_discard_uses_the_cap_from_the_code_until_redis_has_a_stored_cap(
    seed: Seed,
) -> None:
    """No worker of the task has started yet, so Redis has no stored cap."""
    rule = {"scopes": ["tenant=a"], "full": "discard|tenant=a|1"}

    first = seed.enqueue("j-1", "j-2", **rule)
    seed.cap("tenant", 3)
    second = seed.enqueue("j-3", **rule)
    seed.cap("tenant", "none")
    third = seed.enqueue("j-4", **rule)

    assert (first.ids, first.discarded) == (("j-1",), (("j-2", "tenant=a"),))
    assert (second.ids, third.ids) == (("j-3",), ("j-4",))
    (told,) = [j.fields for e in seed.entries() for j in e.jobs if e.event == "discarded"]
    assert (told["scope"], told["cap"]) == ("tenant=a", 1)


def test_the_index_entry_of_an_exhausted_rate_does_not_count_as_a_scheduled_job(seed: Seed) -> None:
    seed.cap("tenant@10s", "1/10000ms/1")
    seed.enqueue("j-1", "j-2", scopes=["tenant@10s=a"])
    seed.enqueue("later", delay_ms=60_000)
    seed.claim()

    assert "rate|tenant@10s=a" in seed.snapshot()["scheduled"]
    counts = seed.client.run(seed.client.calls.reads.counts(seed.queue))
    assert (counts.scheduled, counts.running, counts.waiting) == (1, 1, 1)
