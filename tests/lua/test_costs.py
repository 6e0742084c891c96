"""Rates that count a unit: how much a job takes, when it may begin, and what Redis stores about the rate."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rq_core.doctor import examine
from rq_core.model.job import Claim
from rq_core.model.limits.limit import read_spent
from rq_core.model.state_line import read_state_line
from rq_core.views.scopes import limit_of, standing_rows
from tests.kit.doctor import mend
from tests.kit.lanes import waiting_in_vain
from tests.kit.seed import Seed
from tests.rigs.naive_bucket import Bucket

FAMILY = "ask.model@1s:tokens"
SCOPE = f"{FAMILY}=gpt"


def begin(seed: Seed, limit: str, *costs: int, scope: str = SCOPE, **options: Any) -> None:
    """Set the limit, and enqueue one job for each cost."""
    seed.cap(scope.partition("=")[0], limit)
    for n, cost in enumerate(costs):
        seed.enqueue(f"j-{n}", scopes=[scope], cost=f"tokens:{cost}", **options)


def claimed(seed: Seed) -> list[str]:
    """Return the jobs that an idle worker gets if it claims again and again."""
    found = [claim.id for _ in range(4) for claim in seed.claim().jobs]
    seed.assert_consistent()
    return found


def test_a_job_takes_its_cost_from_the_burst(seed: Seed) -> None:
    begin(seed, "100/1000ms/10", 4, 5, 2)

    assert claimed(seed) == ["j-0", "j-1"]  # 9 of 10 are in use, and one comes back each 10 ms.
    seed.advance(9)
    assert claimed(seed) == []
    seed.advance(1)
    assert claimed(seed) == ["j-2"]


def test_a_job_that_costs_more_than_the_burst_waits_for_the_whole_burst(
    seed: Seed,
) -> None:
    """The job begins when the whole burst is free. The rate then has a debt, for which the next job waits."""
    begin(seed, "100/1000ms/10", 1, 30, 1)

    assert claimed(seed) == ["j-0"]
    seed.advance(10)
    assert claimed(seed) == ["j-1"]
    seed.advance(20 * 10 + 9)
    assert claimed(seed) == []
    seed.advance(1)
    assert claimed(seed) == ["j-2"]


def test_cheap_jobs_do_not_overtake_an_expensive_job_that_waits_for_the_rate(seed: Seed) -> None:
    """The cheap jobs are in another lane of the same rate, and the rate has room for each of them.

    If they could take this room again and again, the expensive job would wait for ever.
    """
    begin(seed, "100/1000ms/10", 5, 10)
    for n in range(8):
        seed.enqueue(f"cheap-{n}", scopes=[SCOPE, "region=x"], cost="tokens:1")

    assert claimed(seed) == ["j-0"]
    seed.advance(49)
    assert claimed(seed) == []
    seed.advance(1)
    assert claimed(seed) == ["j-1"]


def test_a_job_without_a_cost_takes_one_unit_from_the_rate(seed: Seed) -> None:
    begin(seed, "100/1000ms/10", 9)
    seed.enqueue("a", "b", scopes=[SCOPE])

    assert claimed(seed) == ["j-0", "a"]


def test_each_unit_is_taken_from_its_own_rate(seed: Seed) -> None:
    seed.cap("t@1s:tokens", "1000/1000ms/1000")
    seed.cap("t@1s:points", "10/1000ms/10")
    seed.cap("t@1s", "1000/1000ms/1000")
    scopes = ["t@1s:tokens=", "t@1s:points=", "t@1s="]
    seed.enqueue("a", "b", "c", scopes=scopes, cost="points:4,tokens:300")
    claimed_ids = [claim.id for claim in seed.claim().jobs]

    (event,) = [entry for entry in seed.entries() if entry.event == "claimed"]
    limits = {scope: limit for job in event.jobs for scope, *limit in job.fields["scopes"]}
    assert limits == {
        "t@1s=": [1000, 1000, 1000],
        "t@1s:tokens=": [1000, 1000, 1000, 300],
        "t@1s:points=": [10, 1000, 10, 4],
    }
    assert claimed_ids == ["a", "b"]  # The third needs 12 points.


def test_a_retry_takes_the_cost_again(seed: Seed) -> None:
    begin(seed, "100/1000ms/10", 8)
    (claim,) = seed.claim().jobs
    seed.fail(claim)

    assert claimed(seed) == []
    seed.advance(60)
    assert claimed(seed) == ["j-0"]


def test_a_delayed_job_keeps_its_cost(seed: Seed) -> None:
    begin(seed, "100/1000ms/10", 8, 8, delay_ms=50)
    seed.advance(50)

    assert claimed(seed) == ["j-0"]
    seed.advance(60)
    assert claimed(seed) == ["j-1"]


def test_a_debt_is_not_forgiven_by_later_claims(seed: Seed) -> None:
    """The debt is 490 units, and the burst is 10. Only a rate without a unit has its debt limited by later claims."""
    begin(seed, "100/1000ms/10", 500, 1)
    assert claimed(seed) == ["j-0"]
    for _ in range(10):
        seed.advance(300)
        seed.enqueue("other", scopes=["tenant=x"])
        seed.claim()
    seed.advance(4_900 - 3_000 + 9)
    assert claimed(seed) == []
    seed.advance(1)

    assert claimed(seed) == ["j-1"]


@pytest.mark.parametrize(("limit", "ms"), [("200/1000ms/10", 250), ("50/1000ms/10", 1_000)])
def test_a_new_limit_of_a_rate_keeps_the_units_that_are_already_used(
    seed: Seed, limit: str, ms: int
) -> None:
    begin(seed, "100/1000ms/10", 60, 10)
    assert claimed(seed) == ["j-0"]
    seed.advance(100)  # 50 of the 60 are still in use.

    seed.cap(FAMILY, limit)
    assert claimed(seed) == []
    seed.advance(ms - 1)
    assert claimed(seed) == []
    seed.advance(1)

    assert claimed(seed) == ["j-1"], waiting_in_vain(seed.snapshot())


def test_a_debt_of_a_rate_does_not_change_when_the_clock_goes_back(seed: Seed) -> None:
    begin(seed, "100/1000ms/10", 60, 10)
    assert claimed(seed) == ["j-0"]

    seed.advance(-3_600_000)
    assert claimed(seed) == []
    seed.advance(599)
    assert claimed(seed) == []
    seed.advance(1)

    assert claimed(seed) == ["j-1"]


@pytest.mark.parametrize("limit", ["none", "0"])
def test_a_rate_can_be_changed_live_to_no_limit_or_to_zero(seed: Seed, limit: str) -> None:
    begin(seed, "100/1000ms/10", 60, 60)
    assert claimed(seed) == ["j-0"]

    seed.cap(FAMILY, limit)

    assert claimed(seed) == (["j-1"] if limit == "none" else [])


def test_an_unused_rate_is_removed_from_redis(seed: Seed) -> None:
    begin(seed, "100/1000ms/10", 60)
    claimed(seed)
    spent = read_spent(seed.snapshot()["rates"][SCOPE])
    assert spent is not None
    assert spent.arrival_us == (seed.now + 600) * 1000
    seed.advance(601)
    seed.claim()
    seed.advance(101)
    seed.claim()

    assert seed.snapshot()["rates"] == {}


def test_enqueue_refuses_invalid_costs(seed: Seed) -> None:
    wrong = ["0", "-1", "x", "1.5", "1,", "01", "5,points", "", "1" * 600]
    for cost in [*(f"tokens:{each}" for each in wrong), "tokens", ":5", "tok ens:5", "1:1"]:
        with pytest.raises(Exception, match="kinds"):
            seed.enqueue("j", scopes=[SCOPE], cost=cost)

    assert seed.snapshot()["jobs"] == {}


@pytest.mark.parametrize("limit", [(7, 100, 5), (90_000, 60_000, 90_000)])
def test_claims_under_a_rate_begin_at_the_same_millisecond_as_with_a_naive_token_bucket(
    seed: Seed, limit: tuple[int, int, int]
) -> None:
    most, window_ms, burst = limit
    rng = random.Random(most)
    costs = [rng.randint(1, 3 * burst) for _ in range(25)]
    begin(seed, f"{most}/{window_ms}ms/{burst}", *costs)
    bucket, clock = Bucket(*limit), seed.now
    bucket.at_ms = clock
    for n, cost in enumerate(costs):
        opens = bucket.opens_ms(cost, clock)
        if opens > clock:
            assert seed.claim(1).jobs == ()
            seed.advance(opens - clock - 1)
            assert seed.claim(1).jobs == (), f"job {n} began too early"
            seed.advance(1)
            clock = opens
        (claim,) = seed.claim(1).jobs
        assert claim.id == f"j-{n}"
        seed.complete(claim)
        bucket.take(cost, clock)
        idle = rng.choice([0, 0, 0, 1, window_ms])
        seed.advance(idle)
        clock += idle


# What jobs have really taken.


def test_a_job_that_took_less_than_its_cost_gives_the_difference_back_at_once(seed: Seed) -> None:
    begin(seed, "100/1000ms/10", 10, 7)
    (claim,) = seed.claim().jobs
    assert claimed(seed) == []

    assert seed.spend(claim, told="tokens:3") == {}

    assert claimed(seed) == ["j-1"]


def test_a_job_that_took_more_than_its_cost_delays_the_next_job(seed: Seed) -> None:
    begin(seed, "100/1000ms/10", 5, 5)
    (claim,) = seed.claim(1).jobs
    seed.spend(claim, told="tokens:45")

    assert claimed(seed) == []
    seed.advance(399)
    assert claimed(seed) == []
    seed.advance(1)
    assert claimed(seed) == ["j-1"]


def test_the_log_has_the_real_cost_of_a_job_only_in_units_that_a_rate_counts(seed: Seed) -> None:
    begin(seed, "100/1000ms/10", 5)
    (claim,) = seed.claim().jobs

    assert seed.spend(claim, told="points:3,tokens:0") == {}
    assert seed.spend(claim, told="points:3") == {"j-0": "unknown"}

    (event,) = [entry for entry in seed.entries() if entry.event == "cost_settled"]
    (job,) = event.jobs
    assert job.fields == {"id": "j-0", "fence": claim.fence, "taken": "tokens:0"}


def test_a_worker_without_the_claim_cannot_correct_a_cost(seed: Seed) -> None:
    begin(seed, "100/1000ms/10", 9)
    (claim,) = seed.claim().jobs
    before = seed.snapshot()["rates"]

    assert seed.spend((claim.id, "1-1"), told="tokens:1") == {"j-0": "stale"}
    assert seed.spend(claim, told="tokens:99", worker="w-2") == {"j-0": "stale"}
    assert seed.spend(("other", claim.fence), told="tokens:1") == {"other": "gone"}

    assert seed.snapshot()["rates"] == before


@pytest.mark.parametrize("told", ["tokens", "tokens:-1", "tokens:x", "tokens:1;", "tokens:1.5"])
def test_a_malformed_correction_of_costs_is_refused(seed: Seed, told: str) -> None:
    begin(seed, "100/1000ms/10", 9)
    (claim,) = seed.claim().jobs

    with pytest.raises(Exception, match="taken"):
        seed.spend(claim, told=told)


def test_claims_after_corrected_costs_begin_at_the_same_millisecond_as_with_a_naive_token_bucket(
    seed: Seed,
) -> None:
    limit = (90, 1_000, 60)
    rng = random.Random(5)
    costs = [rng.randint(1, 90) for _ in range(25)]
    begin(seed, "90/1000ms/60", *costs)
    bucket, clock = Bucket(*limit), seed.now
    bucket.at_ms = clock
    for n, cost in enumerate(costs):
        opens = bucket.opens_ms(cost, clock)
        if opens > clock:
            seed.advance(opens - clock - 1)
            assert seed.claim(1).jobs == (), f"job {n} began too early"
            seed.advance(1)
            clock = opens
        (claim,) = seed.claim(1).jobs
        assert claim.id == f"j-{n}"
        bucket.take(cost, clock)
        ran_ms = rng.choice([0, 3, 200])
        seed.advance(ran_ms)
        clock += ran_ms
        told = round(cost * rng.uniform(0.3, 3))
        seed.spend(claim, told=f"tokens:{told}")
        bucket.correct(told - cost, clock)
        seed.complete(claim)


# Pauses.

PLAIN = "ask.model@1s=gpt"
every_rate = pytest.mark.parametrize("scope", [SCOPE, PLAIN])


def paused(seed: Seed, scope: str, ms: int, *costs: int, limit: str = "100/1000ms/10") -> Claim:
    """Enqueue a job of each cost, and claim all but the last. The first job pauses the scope, and is rolled back.

    Returns the claim of the first job.
    """
    begin(seed, limit, *costs, scope=scope)
    first, *others = seed.claim(len(costs) - 1).jobs
    seed.complete(*others)
    assert seed.spend(first, told="", pauses=f"{scope}|{ms}") == {}
    seed.rollback(first, reason="scope_paused")
    return first


@every_rate
def test_no_job_of_a_paused_scope_begins_before_the_pause_ends(seed: Seed, scope: str) -> None:
    paused(seed, scope, 5_000, 1, 1)
    seed.enqueue("late", scopes=[scope], priority="critical")
    seed.enqueue("other", scopes=[scope.replace("gpt", "ada")])

    assert claimed(seed) == ["other"]
    seed.advance(4_999)
    assert claimed(seed) == []
    seed.advance(1)
    assert claimed(seed)[:1] == ["late"], waiting_in_vain(seed.snapshot())


@every_rate
def test_jobs_begin_one_after_another_when_a_pause_ends(seed: Seed, scope: str) -> None:
    """At the end of a pause, the rate has room for one job only. If many jobs began at once, the service would refuse
    them again."""
    paused(seed, scope, 5_000, *[1] * 8)
    seed.enqueue(*(f"more-{n}" for n in range(6)), scopes=[scope])

    begun = []
    seed.advance(5_000)
    for _ in range(4):
        begun.append(len(claimed(seed)))
        seed.advance(10)

    assert begun == [1, 1, 1, 1]


@every_rate
def test_a_shorter_pause_does_not_end_a_longer_pause(seed: Seed, scope: str) -> None:
    begin(seed, "100/1000ms/10", 1, 1, 1, scope=scope)
    first, second = seed.claim(2).jobs
    seed.spend(first, told="", pauses=f"{scope}|5000")
    seed.spend(second, told="", pauses=f"{scope}|100")

    until = [
        job.fields["until_ms"]
        for e in seed.entries()
        if e.event == "scope_paused"
        for job in e.jobs
    ]
    assert until == [seed.now + 5_000] * 2
    seed.advance(4_999)
    assert claimed(seed) == []
    seed.advance(1)
    assert claimed(seed) == ["j-2"]


@every_rate
def test_a_pause_outlasts_a_change_of_the_limit(seed: Seed, scope: str) -> None:
    paused(seed, scope, 5_000, 1, 1)

    seed.cap(scope.partition("=")[0], "1000/1000ms/100")

    assert claimed(seed) == []
    seed.advance(4_999)
    assert claimed(seed) == []
    seed.advance(1)
    assert claimed(seed)[:1] == ["j-0"]


@every_rate
def test_a_pause_has_the_same_length_when_the_clock_goes_back(seed: Seed, scope: str) -> None:
    paused(seed, scope, 5_000, 1, 1)

    seed.advance(-3_600_000)
    assert claimed(seed) == []
    seed.advance(4_999)
    assert claimed(seed) == []
    seed.advance(1)
    assert claimed(seed)[:1] == ["j-0"]


@every_rate
@pytest.mark.parametrize("back_ms", [2_000, 3_000, 3_600_000])
def test_a_pause_that_is_partly_over_ends_no_earlier_when_the_clock_goes_back(
    seed: Seed, scope: str, back_ms: int
) -> None:
    """Checks a clock that is set back to a moment in the pause, to its beginning, and to an earlier time.

    The pause of 5,000 ms still lasts for at least the remaining 2,000 ms. Redis may count all 5,000 ms again.
    """
    paused(seed, scope, 5_000, 1, 1)
    seed.advance(3_000)
    assert claimed(seed) == []

    seed.advance(-back_ms)
    assert claimed(seed) == []
    seed.advance(1_999)
    assert claimed(seed) == []
    seed.advance(3_001)
    assert claimed(seed)[:1] == ["j-0"]


def test_a_worker_cannot_pause_a_scope_that_is_no_rate_of_its_job(seed: Seed) -> None:
    seed.cap("ask.model", 5)
    seed.enqueue("a", "b", scopes=["ask.model=gpt"])
    (claim,) = seed.claim(1).jobs

    for scope in ("ask.model=gpt", SCOPE, PLAIN):
        assert seed.spend(claim, told="", pauses=f"{scope}|5000") == {"a": "unknown"}

    assert claimed(seed) == ["b"]


def test_a_worker_without_the_claim_pauses_nothing(seed: Seed) -> None:
    begin(seed, "100/1000ms/10", 1, 1)
    seed.claim(1)

    assert seed.spend(("j-0", "1-1"), told="", pauses=f"{SCOPE}|5000") == {"j-0": "stale"}

    assert claimed(seed) == ["j-1"]


@every_rate
def test_a_rate_is_stored_without_the_pause_once_the_pause_is_over(seed: Seed, scope: str) -> None:
    paused(seed, scope, 5_000, 1, 1)
    assert " until=" in seed.snapshot()["rates"][scope]
    seed.advance(5_000)
    claimed(seed)

    value = seed.snapshot()["rates"][scope]
    assert value.isdigit() if scope == PLAIN else read_spent(value) is not None
    assert "until" not in value


# What operators see, and what the doctor mends.


@every_rate
def test_operators_see_the_unit_of_a_rate_and_when_its_pause_ends(seed: Seed, scope: str) -> None:
    paused(seed, scope, 5_000, 1, 1)
    assert claimed(seed) == []
    family, unit = scope.partition("=")[0], " tokens" if scope == SCOPE else ""
    resumes = seed.now + 5_000

    rows = {row.scope: row for row in seed.client.run(seed.client.calls.reads.caps(seed.queue, 10))}
    line = str(seed.state("j-1"))
    job = read_state_line(seed.queue, "j-1", line)
    standing = seed.client.run(seed.client.calls.reads.standing(job))

    assert limit_of(rows[family]) == f"100/1s/10{unit} each"
    assert rows[scope].resumes_ms == standing.resumes_ms == resumes
    assert dict(standing_rows(standing, seed.now))["rate"] == f"100/1s/10{unit}"


@pytest.mark.parametrize("what", ["lost", "damaged"])
def test_the_doctor_restores_the_used_part_of_a_rate(seed: Seed, what: str) -> None:
    begin(seed, "100/1000ms/10", 60, 10)
    assert claimed(seed) == ["j-0"]
    if what == "lost":
        seed.control.hdel(seed.keys("rates"), SCOPE)
    else:
        seed.control.hset(seed.keys("rates"), SCOPE, "soon")

    assert mend(seed) == []

    spent = read_spent(seed.snapshot()["rates"][SCOPE])
    assert spent is not None
    assert spent.arrival_us == (seed.now + 600) * 1000
    seed.advance(599)
    assert claimed(seed) == []
    seed.advance(1)
    assert claimed(seed) == ["j-1"]


@every_rate
def test_the_doctor_finds_no_error_in_debts_and_pauses(seed: Seed, scope: str) -> None:
    begin(seed, "100/1000ms/10", 5, 5, scope=scope)
    (first, _) = seed.claim().jobs
    seed.spend(first, told="tokens:5000", pauses=f"{scope}|3600000")

    assert [found.says for found in examine(seed.snapshot())] == []
