"""Costs and pauses that rq-core's own clients never write. Other clients send them in calls, or write them into
keys."""

from __future__ import annotations

import pytest

from rq_core.model.limits.limit import PAUSE_MAX_MS
from tests.kit.doctor import mend
from tests.kit.seed import Seed
from tests.lua.test_costs import PLAIN, SCOPE, begin, claimed, every_rate

TOO_MUCH = ["1000000001", "1000000000000", "9" * 400]


@pytest.mark.parametrize("cost", [*(f"tokens:{each}" for each in TOO_MUCH), "tokens:5,tokens:6"])
def test_enqueue_refuses_a_cost_that_is_too_high_or_given_twice(seed: Seed, cost: str) -> None:
    with pytest.raises(Exception, match="kinds"):
        seed.enqueue("j", scopes=[SCOPE], cost=cost)

    assert seed.snapshot()["jobs"] == {}


@pytest.mark.parametrize("number", TOO_MUCH)
def test_a_worker_cannot_report_a_cost_that_is_too_high(seed: Seed, number: str) -> None:
    begin(seed, "100/1000ms/10", 5)
    (claim,) = seed.claim().jobs
    before = seed.snapshot()["rates"]

    with pytest.raises(Exception, match="taken"):
        seed.spend(claim, told=f"points:1,tokens:{number}")

    assert seed.snapshot()["rates"] == before


@pytest.mark.parametrize("ms", [str(PAUSE_MAX_MS + 1), str(10 * 365 * 86_400_000), "9" * 400])
def test_a_worker_cannot_pause_a_scope_for_years(seed: Seed, ms: str) -> None:
    begin(seed, "100/1000ms/10", 5)
    (claim,) = seed.claim().jobs
    before = seed.snapshot()["rates"]

    with pytest.raises(Exception, match="pauses"):
        seed.spend(claim, told="", pauses=f"{SCOPE}|{ms}")

    assert seed.snapshot()["rates"] == before


FORGED = [
    "soon until=5",
    "-5",
    "5+1 x 5",
    "1800000001000000+0 100/0ms/10 1",
    "1800000001000000+0 0/1000ms/10 1",
    "1800000000000000+0 100/1000ms/10 1800000000000 until=999999999999999",
    "1800000000000000+0 100/1000ms/10 1800000000000 until=9999999999999999999999",
]


@pytest.mark.parametrize("value", FORGED)
def test_the_doctor_repairs_a_forged_rate_so_that_its_jobs_begin(seed: Seed, value: str) -> None:
    """First a pause changes the forged value. The doctor must repair the result."""
    begin(seed, "100/1000ms/10", 5, 5)
    (claim,) = seed.claim(1).jobs
    seed.control.hset(seed.keys("rates"), SCOPE, value)
    seed.spend(claim, told="tokens:5", pauses=f"{SCOPE}|50")

    assert mend(seed) == []

    seed.advance(PAUSE_MAX_MS + 1_000)
    assert claimed(seed) == ["j-1"]


@every_rate
def test_the_doctor_shortens_a_pause_that_exceeds_the_longest_allowed_pause(
    seed: Seed, scope: str
) -> None:
    begin(seed, "100/1000ms/10", 1, 1, scope=scope)
    seed.claim(1)
    until = seed.now + 10 * 365 * 86_400_000
    value = f"{until * 1000}+0 100/1000ms/10 {seed.now} until={until}"
    seed.control.hset(seed.keys("rates"), scope, value)
    seed.control.zadd(seed.keys("expiring"), {f"rate|{scope}": until})
    seed.control.zadd(seed.keys("scheduled"), {f"rate|{scope}": until})

    assert mend(seed) == []

    seed.advance(PAUSE_MAX_MS - 1)
    assert claimed(seed) == []
    seed.advance(1 + 90)
    assert claimed(seed) == ["j-1"]


@pytest.mark.parametrize("scope", [SCOPE, PLAIN])
def test_the_doctor_ends_a_forged_wait_for_a_rate(seed: Seed, scope: str) -> None:
    begin(seed, "100/1000ms/10", 10, 5, scope=scope)
    seed.claim(1)
    assert claimed(seed) == ([] if scope == SCOPE else ["j-1"])
    seed.enqueue("late", scopes=[scope])
    seed.control.zadd(seed.keys("scheduled"), {f"rate|{scope}": 4e12})

    assert mend(seed) == []

    seed.advance(1_000)
    assert "late" in claimed(seed)
