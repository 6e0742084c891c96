"""The doctor on a queue with caps. The doctor reports and restores lost members of indexes. No repair exceeds a cap."""

import random
from collections.abc import Callable, Iterator

import pytest

from rq_core.doctor import Kind, repair
from rq_core.doctor.repair import carry_out
from tests.kit.busy import RATE, Busy
from tests.kit.consistency import assert_consistent
from tests.kit.doctor import look, mend, named
from tests.kit.lanes import holders_of
from tests.kit.seed import Seed
from tests.kit.snapshots import lines_of


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url) as made:
        yield made


LOST = [
    "leases", "holders", "lanes", "blocked", "open", "waiting", "ready:2", "scheduled", "wake", "rates", "fair",
]  # fmt: skip


@pytest.mark.parametrize("fair", [False, True], ids=["by age", "fair"])
def test_the_doctor_reports_no_finding_for_a_healthy_queue_with_caps(
    seed: Seed, fair: bool
) -> None:
    busy = Busy(seed, fair=fair)
    assert look(seed) == []
    assert_consistent(seed.snapshot())
    while busy.held:
        busy.end()
        assert look(seed) == []
        busy.take(2)
        assert look(seed) == []


def test_all_indexes_are_repaired_after_a_simultaneous_loss(seed: Seed) -> None:
    busy = Busy(seed)
    before = seed.snapshot()
    seed.control.delete(*(seed.keys(name) for name in (*LOST, "expiring", "dead")))

    assert mend(seed) == []

    after = seed.snapshot()
    assert_consistent(after)
    assert lines_of(before) == lines_of(after)
    assert holders_of(before) == holders_of(after)
    left = before["jobs"].keys() - {"dead"}
    assert left == busy.drain()


def test_a_rate_that_was_repaired_admits_no_more_jobs_than_before_its_loss(seed: Seed) -> None:
    Busy(seed)
    before = seed.snapshot()["rates"]
    seed.control.delete(seed.keys("rates"))

    mend(seed)

    after = seed.snapshot()["rates"]
    assert before.keys() == after.keys()
    assert 0 <= int(after[f"{RATE}=h"]) - int(before[f"{RATE}=h"]) < 1_000


# What a careless hand does, and what the doctor names.
HANDS: dict[str, tuple[Callable[[Seed], object], set[str]]] = {
    "members of a lane that no script writes": (
        lambda s: s.control.zadd(
            s.keys("waiting"),
            {
                "2+task=t+tenant=a|0000000000000001|nobody": 0,
                "2+task=t+tenant=a|0000000000000002|a-1": 0,
                "2+task=q|0000000000000001|plain-1": 0,
                "rubbish": 0,
            },
        ),
        {"waiting"},
    ),
    "a lane without jobs": (
        lambda s: (
            s.control.hset(s.keys("lanes"), "2+task=q", "open 2000000000000001"),
            s.control.zadd(s.keys("open"), {"2+task=q": 2000000000000001, "rubbish": 1}),
        ),
        {"lanes", "open"},
    ),
    "a lane in both": (
        lambda s: s.control.zadd(s.keys("open"), {first_blocked(s)[2]: 2e15}),
        {"open"},
    ),
    "a lane blocked twice": (
        lambda s: s.control.zadd(
            s.keys("blocked"), {f"task=u|{'1' * 16}|{first_blocked(s)[2]}": 0}
        ),
        {"blocked"},
    ),
    "members of blocked that no script writes": (
        lambda s: s.control.zadd(s.keys("blocked"), {"rubbish": 0, "a|b|c|d": 0, "a|b|": 0}),
        {"blocked"},
    ),
    "a lane with another order": (
        lambda s: s.control.hset(s.keys("lanes"), first_blocked(s)[2], "open 2000000000009999"),
        {"lanes", "open", "blocked"},
    ),
    "a lane of another priority": (
        lambda s: s.control.hset(s.keys("lanes"), first_blocked(s)[2], "open 1000000000000001"),
        {"lanes"},
    ),
    "a lane blocked on a scope of another": (
        lambda s: s.control.hset(
            s.keys("lanes"), first_blocked(s)[2], f"blocked tenant=zz {first_blocked(s)[1]}"
        ),
        {"lanes"},
    ),
    "holders that no script writes": (
        lambda s: s.control.zadd(
            s.keys("holders"),
            {"task=t|nobody": 0, "tenant=a|plain-0": 0, "tenant=b|dead": 0, "rubbish": 0},
        ),
        {"holders"},
    ),
    "the time at which a rate goes on is lost": (
        lambda s: s.control.zrem(s.keys("scheduled"), f"rate|{RATE}=h"),
        {"lanes"},
    ),
    "a rate that is spent further ahead than it can be": (
        lambda s: (
            s.control.zadd(s.keys("scheduled"), {f"rate|{RATE}=h": s.now + 3_600_000}),
            s.control.hset(s.keys("rates"), f"{RATE}=h", (s.now + 3_600_000) * 1000),
        ),
        {"scheduled", "rates"},
    ),
    "times at which nothing goes on": (
        lambda s: s.control.zadd(s.keys("scheduled"), {"caps|tenant": 9e15, "rate|tenant=a": 9e15}),
        {"scheduled"},
    ),
    "an invalid lane in a state line": (
        lambda s: s.control.hset(
            s.keys("state"), "late", str(s.state("late")).replace("lane=2+", "lane=x+")
        ),
        {"unreadable"},
    ),
    "the state of a running job lost": (
        lambda s: s.control.hdel(s.keys("state"), "b-0"),
        {"lost"},
    ),
    "the state of a waiting job lost": (
        lambda s: s.control.hdel(s.keys("state"), "late"),
        {"lost"},
    ),
}


def first_blocked(seed: Seed) -> list[str]:
    """Return the scope, the place in line and the name of the first lane that a tenant's cap blocks."""
    found = next(m for m in seed.snapshot()["blocked"] if m.startswith("tenant="))
    return str(found).split("|")


@pytest.mark.parametrize("hand", HANDS)
def test_the_doctor_finds_and_repairs_damage_that_was_done_by_hand(seed: Seed, hand: str) -> None:
    act, expected = HANDS[hand]
    busy = Busy(seed)
    before = seed.snapshot()
    act(seed)

    found = look(seed)

    assert expected <= named(found), found
    assert all(f.mendable for f in found)
    assert mend(seed) == []
    after = seed.snapshot()
    assert_consistent(after)
    assert lines_of(before) == lines_of(after)
    assert holders_of(before) == holders_of(after)
    left = before["jobs"].keys() - {"dead"}
    assert left == busy.drain()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(8))
def test_random_damage_to_indexes_is_repaired(seed: Seed, number: int) -> None:
    """Checks members of indexes that are removed, moved or added at random while the queue drains."""
    chance = random.Random(number)
    busy = Busy(seed, fair=number % 2 == 1)
    for _ in range(6):
        before = seed.snapshot()
        for name in chance.sample(LOST, 3):
            members = before[name]
            if not members or chance.random() < 0.3:
                seed.control.delete(seed.keys(name))
            elif name in ("lanes", "rates"):
                seed.control.hdel(seed.keys(name), chance.choice(list(members)))
            elif isinstance(members, dict):
                seed.control.zrem(seed.keys(name), chance.choice(list(members)))
                seed.control.zadd(
                    seed.keys(name), {chance.choice([*before["waiting"], *before["open"], "?"]): 0}
                )
        found = look(seed)
        if busy.held and number % 3:
            busy.end()
            seed.enqueue("new-" + busy.held[0].id)
        before = seed.snapshot()
        assert repair(seed.client, seed.queue, found, by="ada") == []
        after = seed.snapshot()
        assert_consistent(after)
        assert lines_of(before) == lines_of(after)
        busy.take(chance.randrange(1, 6))
        if busy.held:
            busy.end()
    seed.take_token()
    assert busy.drain() <= before["jobs"].keys()
    assert list(seed.snapshot()["jobs"]) == ["dead"]


@pytest.mark.slow
@pytest.mark.parametrize("lost", LOST)
def test_a_repair_of_findings_that_are_no_longer_true_does_not_damage_the_queue(
    seed: Seed, lost: str
) -> None:
    """Checks a repair after the queue has changed.

    Since the examination, jobs have changed their states, and another doctor has repaired the queue.
    """
    busy = Busy(seed, fair=lost == "fair")
    seed.control.delete(seed.keys(lost))
    found = look(seed)
    assert mend(seed) == []
    while busy.held:
        busy.end()
        busy.take(2)
        carry_out(seed.client, seed.queue, found, by="ada")

        # A job that both put back stands in its list twice: claim passes over it, and `meta` counts it.
        assert named(look(seed)) <= ({"meta"} if lost == "ready:2" else set())
        assert mend(seed) == []
        assert_consistent(seed.snapshot())


@pytest.mark.parametrize("fair", [False, True], ids=["by age", "fair"])
def test_repair_does_not_remove_a_lane_that_jobs_entered_after_the_examination(
    seed: Seed, fair: bool
) -> None:
    """Checks a lane that was empty when the doctor examined the queue. The doctor does not remove the lane."""
    seed.cap("tenant", 1)
    seed.configure(fair=int(fair))
    seed.control.hset(seed.keys("lanes"), "2+tenant=a", "open 2000000000000001")
    seed.control.zadd(seed.keys("open"), {"2+tenant=a": 2000000000000001})
    found = look(seed)
    seed.enqueue(seed.job("a", scopes=["tenant=a"]))

    assert carry_out(seed.client, seed.queue, found, by="ada") == 0

    assert seed.snapshot()["lanes"].keys() == {"2+tenant=a"}
    assert mend(seed) == []
    assert [c.id for c in seed.claim().jobs] == ["a"]


def test_an_unchanged_difference_is_repaired_while_the_queue_works(seed: Seed) -> None:
    """Checks that other jobs' changes do not stop the repair. A busy queue can be repaired, too."""
    seed.enqueue("a", "b", "c")
    first, *_ = seed.claim(2).jobs
    seed.control.delete(seed.keys("leases"))
    found = look(seed)
    seed.complete(first)
    seed.enqueue("d")

    assert carry_out(seed.client, seed.queue, found, by="ada") == 1

    assert list(seed.snapshot()["leases"]) == ["b"]
    assert look(seed) == []
    assert_consistent(seed.snapshot())


def test_a_second_repair_changes_nothing(seed: Seed) -> None:
    Busy(seed)
    seed.control.delete(seed.keys("lanes"), seed.keys("holders"))
    mend(seed)
    before = seed.snapshot()

    mend(seed)

    assert before == seed.snapshot()


@pytest.mark.slow
def test_many_lanes_are_repaired_in_chunks(seed: Seed) -> None:
    seed.cap("tenant", 1)
    jobs = [seed.job(f"{t}-{n}", scopes=[f"tenant={t}"]) for t in range(700) for n in range(2)]
    seed.enqueue(*jobs)
    running = [job for _ in range(5) for job in seed.claim(700).jobs]
    assert len(running) == 700
    seed.control.delete(*(seed.keys(n) for n in ("waiting", "lanes", "open", "blocked", "holders")))

    assert mend(seed) == []

    assert_consistent(seed.snapshot())
    seed.complete(*running)
    assert sum(len(seed.claim(700).jobs) for _ in range(5)) == 700


# Limits.


def test_repair_counts_running_jobs_that_a_broken_change_of_a_cap_left_out(
    seed: Seed,
) -> None:
    """Checks the script cap.lua, which broke after it had stored the cap, and before it changed the jobs' state
    lines."""
    seed.enqueue("a", "b")
    seed.claim(1)
    seed.control.hset(seed.keys("caps"), "task=t", "1 version=1 from=live")

    found = look(seed)

    assert {"state", "holders", "meta"} == named(found)
    assert "`holders` lacks 'task=t|a'" in found[0].says
    assert mend(seed) == []
    assert holders_of(seed.snapshot()) == {"task=t": {"a"}}
    assert not seed.claim().jobs
    assert_consistent(seed.snapshot())


def test_a_restored_job_is_counted_in_the_cap_of_its_task(seed: Seed) -> None:
    """Checks a job that ran when its task got its first cap. The log has no lane for this job."""
    seed.enqueue("a", "b")
    seed.claim(1)
    seed.cap("task=t", 1)
    seed.control.hdel(seed.keys("state"), "a")

    assert mend(seed) == []

    assert "lane=2+task=t" in str(seed.state("a"))
    assert not seed.claim().jobs
    assert_consistent(seed.snapshot())


def test_after_limits_were_lost_the_doctor_reports_them_and_repair_admits_all_jobs(
    seed: Seed,
) -> None:
    busy = Busy(seed)
    seed.control.delete(seed.keys("caps"))

    found = look(seed)
    left = mend(seed)

    assert {"no_caps", "lanes", "open", "blocked"} == named(found)
    assert [f.kind for f in left] == [Kind.NO_CAPS]
    assert "an operator must set live limits again" in left[0].says
    # What waits for the rate still waits for the moment that was set.
    waiting = seed.snapshot()["jobs"].keys() - {"dead", "again", *(c.id for c in busy.held)}
    assert {i for i in waiting if not i.startswith("rated")} == set(busy.take())


def test_the_doctor_reports_an_unreadable_limit(seed: Seed) -> None:
    seed.cap("tenant", 1)
    seed.control.hset(seed.keys("caps"), "tenant", "many")

    left = mend(seed)

    assert [(f.kind, f.mendable) for f in left] == [(Kind.UNREADABLE, False)]
    assert "the limit of tenant cannot be read" in left[0].says


def test_repair_puts_limits_in_force_again_after_the_key_meta_was_lost(seed: Seed) -> None:
    busy = Busy(seed)
    before = seed.snapshot()
    seed.control.delete(seed.keys("meta"))

    (said,) = [f.says for f in look(seed) if f.kind is Kind.NO_META]

    assert "whether the queue was paused or fair is not known" in said
    assert mend(seed) == []
    facts = seed.snapshot()["meta"]
    assert ("1", "1") == (facts["caps_by_task"], facts["caps_by_key"])
    left = before["jobs"].keys() - {"dead"}
    assert left == busy.drain()


def test_a_missing_wake_token_is_no_finding_in_a_queue_at_its_own_cap(seed: Seed) -> None:
    seed.cap("queue", 1)
    seed.enqueue("a", "b")
    seed.claim()
    seed.take_token()

    assert look(seed) == []
    seed.cap("queue", 2)
    seed.take_token()
    assert named(look(seed)) == {"no_wake"}


def test_a_missing_wake_token_is_a_finding_if_a_lane_is_open(seed: Seed) -> None:
    seed.cap("task=t", 1)
    seed.enqueue(seed.job("a", scopes=["task=t"]))
    seed.take_token()

    (found,) = look(seed)

    assert "1 job is ready, and no token wakes a worker" == found.says
    assert mend(seed) == []
    assert seed.tokens() == 1


def test_a_queue_that_was_fair_earlier_has_no_findings(seed: Seed) -> None:
    """Checks lanes that keep their virtual times after the queue has ceased to be fair."""
    busy = Busy(seed, fair=True)

    seed.configure(fair=0)

    assert look(seed) == []
    left = seed.snapshot()["jobs"].keys() - {"dead"}
    assert left == busy.drain()
    assert look(seed) == []


def test_the_doctor_accepts_a_lane_in_the_log_without_the_scope_of_a_cap_that_came_later(
    seed: Seed,
) -> None:
    seed.enqueue("a", "b")
    seed.claim(1)
    seed.cap("task=t", 2)
    seed.claim(1)

    assert "lane=2+task=t" in str(seed.state("a"))
    assert look(seed) == []


def test_the_doctor_reports_a_lane_that_differs_from_the_log(seed: Seed) -> None:
    seed.cap("tenant", 1)
    seed.enqueue(seed.job("a", scopes=["tenant=a"]))
    seed.control.hset(seed.keys("state"), "a", str(seed.state("a")).replace("tenant=a", "tenant=b"))

    found = look(seed)

    assert "log_differs" in named(found)
    assert mend(seed) == []
    assert list(seed.snapshot()["lanes"]) == ["2+tenant=b"]
    assert_consistent(seed.snapshot())


def test_the_doctor_does_not_report_scopes_that_a_changed_limit_has_not_reached_yet(
    seed: Seed,
) -> None:
    """Checks a changed limit of a family. The call has updated a part of the scopes, and later claims update the
    remaining ones."""
    seed.cap("tenant", 1)
    seed.enqueue(*(seed.job(f"j-{n}", scopes=["tenant=a"]) for n in range(2)))
    seed.claim()
    seed.claim()
    seed.control.zadd(seed.keys("scheduled"), {"caps|tenant|": seed.now})
    seed.control.hset(seed.keys("caps"), "tenant", "2 version=2 from=live")

    # That the log does not have the change is a finding of its own: see test_settings.
    unlogged = {str(Kind.LOG_DIFFERS)}
    assert named(look(seed)) == unlogged
    seed.control.zrem(seed.keys("scheduled"), "caps|tenant|")
    assert named(look(seed)) == {"lanes", "open", "blocked"} | unlogged
    assert named(mend(seed)) == unlogged
    assert [c.id for c in seed.claim().jobs] == ["j-1"]
