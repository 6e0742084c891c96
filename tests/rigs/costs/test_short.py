"""The proofs of rates that count a unit, and of breakers, in a short form; `scripts/prove/live costs` is the long
form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.servers import RedisServer, engines
from tests.rigs.costs import breaker, keys, refusals, tasks
from tests.rigs.costs.keys import Order
from tests.rigs.costs.refusals import Refused, judge_pauses, judge_runs
from tests.rigs.parks.log import Told
from tests.rigs.stage import DURABLE, served


@pytest.mark.slow
def test_no_rate_is_exceeded_by_jobs_that_cost_up_to_three_times_the_burst(
    valkey: RedisServer, tmp_path: Path
) -> None:
    found = keys.spend(valkey.url, tmp_path, 2_000, 200, processes=2)

    assert [] == found.problems
    assert found.settled == 500
    # The jobs had to wait for their rates, and the judges would have seen if they had not.
    assert min(found.at_nine_tenths) > 0


@pytest.mark.slow
def test_after_a_429_all_jobs_of_the_key_wait_and_none_spends_an_attempt(
    valkey: RedisServer, tmp_path: Path
) -> None:
    found = refusals.refuse(valkey.url, tmp_path, 1_000, 2)

    assert [] == found.problems
    assert found.pauses > 1
    assert 1 in found.probes


@pytest.mark.slow
def test_breakers_keep_their_limits_while_services_fail_and_workers_and_redis_are_killed(
    tmp_path: Path,
) -> None:
    with served(engines()[0], tmp_path, DURABLE) as server:
        found = breaker.strain(
            server, tmp_path, 2.2, hosts_count=2, processes=2, places=3, every_s=0.6
        )

    assert [] == found.problems
    assert found.judged.pauses > 0
    assert found.judged.opened > 0
    assert found.kills + found.zombies > 0


def event(kind: str, at_ms: int, job: str = "a", **facts: Any) -> Told:
    return Told(job, kind, at_ms, facts)


@pytest.mark.parametrize(
    ("claims", "found"),
    [
        ([6_499], 0),
        ([6_498], 1),
        ([1_001], 1),
        ([5_999], 1),
        ([6_499, 6_999], 0),
        ([6_499, 6_998], 1),
        ([6_499, 6_500, 6_501], 2),
    ],
)
def test_the_judge_of_pauses_finds_claims_that_come_too_early(
    claims: list[int], found: int
) -> None:
    """Checks a pause from 1,000 to 6,000 ms. Afterwards, one job may begin every 500 ms."""
    told = [
        event("claimed", 990), event("scope_paused", 1_000, until_ms=6_000),
        *(event("claimed", at_ms) for at_ms in claims), event("scope_paused", 9_000, until_ms=9_500),
        event("cap_changed", 9_001), event("claimed", 9_002),
    ]  # fmt: skip
    refused = Refused(9)

    assert len(judge_pauses(told, refused)) == found
    assert (refused.pauses, refused.probes) == (2, [len(claims)])


@pytest.mark.parametrize(
    ("claim", "at_ms", "found"), [(1, 1_500.5, 0), (2, 1_500.5, 1), (2, 6_000.1, 0)]
)
def test_the_judge_of_runs_finds_a_handler_that_began_during_a_pause(
    claim: int, at_ms: float, found: int
) -> None:
    """Checks a job whose first claim was before the pause. The handler of this claim may begin in the pause."""
    told = [event("claimed", 990), event("scope_paused", 1_000, until_ms=6_000)]

    assert len(judge_runs(told, [{"job": "a", "claim": claim, "at_ms": at_ms}])) == found


@pytest.mark.parametrize(
    ("at_ms", "told", "found"), [(54, 1_034, 0), (53, 1_034, 1), (54, 1_033, 1), (900, 1_034, 0)]
)
def test_the_judge_of_the_log_finds_an_early_claim_and_a_wrong_cost(
    at_ms: int, told: int, found: int
) -> None:
    """Checks a job that takes 34 tokens more than the burst, and a job that then waits for 500 tokens."""
    orders = {"a": Order("k", 1_000, tells=True), "b": Order("k", 500, tells=False)}
    log = [
        event("claimed", 0), event("cost_settled", 0, taken=f"tokens:{told}"),
        event("claimed", at_ms, "b"),
    ]  # fmt: skip

    assert tasks.truth("a", 1_000) == 1_034
    assert len(keys.early_in_log(log, orders)) == found
