"""The judge of rates that count a unit reports each handler that began too early, and no other handler."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rigs.judge.costs import runs, too_early
from tests.rigs.naive_bucket import Bucket


def bucket() -> Bucket:
    """Return a bucket of 1,000 tokens that refills in 100 ms."""
    return Bucket(1_000, 100, 1_000)


def ran(
    number: int, began_ms: float, tokens: int, *, key: str = "k", pid: int = 1, ended_ms: float = 0
) -> dict[str, Any]:
    """Return a handler's line. ``number`` is its place in the order of claims."""
    facts = {"key": key, "tokens": tokens, "job": f"j{number}", "pid": pid}
    return {
        "fence": f"1-{number}", "began_ms": began_ms, "at_ms": ended_ms or began_ms + 0.5, **facts,
    }  # fmt: skip


@pytest.mark.parametrize(("began_ms", "found"), [(1_049.9, 1), (1_050.0, 0), (2_000.0, 0)])
def test_the_judge_reports_a_handler_that_began_before_the_rate_had_regained_its_cost(
    began_ms: float, found: int
) -> None:
    lines = [ran(1, 1_000.5, 1_000), ran(2, began_ms, 500, pid=2)]

    problems = too_early(runs(lines, 1, since_ms=1_000), bucket)

    assert len(problems) == found
    assert problems in ([], ["j2 of k began 1 ms too early to take 500"])


def test_the_judge_reports_a_handler_that_began_while_its_key_was_in_debt() -> None:
    dear = ran(1, 1_000, 3_000)

    for began_ms, key, found in ((1_200, "k", 1), (1_201, "k", 0), (1_000, "other", 0)):
        lines = [dear, ran(2, began_ms, 1, key=key)]
        assert len(too_early(runs(lines, 9, since_ms=1_000), bucket)) == found


def test_the_judge_accepts_a_handler_whose_claim_may_have_come_much_earlier() -> None:
    """Checks two handlers that began at almost the same time: the first may have been claimed at 900 ms."""
    lines = [ran(1, 1_000, 1_000), ran(2, 1_001, 1_000, pid=2)]

    assert too_early(runs(lines, 1, since_ms=900), bucket) == []
    assert len(too_early(runs(lines, 1, since_ms=902), bucket)) == 1


@pytest.mark.parametrize(("places", "found"), [(1, 1), (2, 0)])
def test_the_judge_assumes_no_claim_before_the_worker_had_a_free_place(
    places: int, found: int
) -> None:
    """Checks a worker whose job of another key ended at 990 ms. If the worker has a second place, it may have claimed
    its next job before that time."""
    lines = [
        ran(1, 500, 1, key="other", ended_ms=990),
        ran(2, 1_000, 1_000),
        ran(3, 1_010, 500, pid=2),
    ]

    assert len(too_early(runs(lines, places, since_ms=500), bucket)) == found


def test_the_judge_orders_runs_by_their_claims_and_not_by_their_beginnings() -> None:
    """Checks a job of 3,000 tokens that was claimed after a job of 10 tokens, and whose handler began first."""
    cheap, dear = ran(1, 1_010, 10), ran(2, 1_001, 3_000, pid=2)

    assert too_early(runs([dear, cheap], 1, since_ms=1_000), bucket) == []
    turned = [{**dear, "fence": "1-1"}, {**cheap, "fence": "1-2"}]
    assert len(too_early(runs(turned, 1, since_ms=1_000), bucket)) == 1
