"""The judge of breakers reports each run that a breaker must not admit, and no other run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rigs.judge.breakers import FAILED, OK, Event, Judge, Limit, Run

LIMIT = Limit(2, 1_000, 500)
Line = tuple[float, float, str]
"""When a handler began and ended (Unix ms), and how."""
RUNS: dict[str, Line] = {
    "a": (101, 109, FAILED), "b": (102, 119, FAILED), "c": (103, 135, FAILED),
    "d": (620, 629, OK), "e": (640, 650, OK),
}  # fmt: skip
LOG: tuple[tuple[str, int, str], ...] = (
    ("claimed", 100, "a"), ("claimed", 100, "b"), ("claimed", 100, "c"), ("retried", 110, "a"),
    ("scope_paused", 120, "b"), ("retried", 120, "b"), ("retried", 140, "c"),
    ("claimed", 620, "d"), ("succeeded", 630, "d"), ("claimed", 640, "e"), ("succeeded", 650, "e"),
)  # fmt: skip


def judged(log: Any, **runs: Line) -> list[str]:
    """Return the problems, without those about jobs that have not succeeded."""
    lines = {
        (job, 1): Run("h", began, 0, ended, how)
        for job, (began, ended, how) in {**RUNS, **runs}.items()
    }
    events = [
        Event(kind, at_ms, (job, 1), {"until_ms": at_ms + 500} if kind == "scope_paused" else {})
        for kind, at_ms, job in log
    ]
    found = Judge(lines, dict.fromkeys("abcde", "h"), LIMIT).judge(events)
    return [each for each in found.problems if "succeeded 0 times" not in each]


def without(*left_out: tuple[str, int, str]) -> list[tuple[str, int, str]]:
    return [each for each in LOG if each not in left_out]


def test_a_breaker_that_holds_is_not_reported() -> None:
    assert judged(LOG) == []


def test_a_failure_that_is_logged_behind_the_pause_by_the_same_call_counts_before_it() -> None:
    log = [*without(("retried", 110, "a"))]
    log.insert(log.index(("retried", 120, "b")), ("retried", 120, "a"))

    assert judged(log) == []


def test_a_run_that_begins_in_a_pause_is_reported() -> None:
    assert judged(LOG, d=(619, 629, OK)) == ["d, claim 1: began 1 ms before the end of a pause"]


def test_a_second_probe_is_reported() -> None:
    log = without(("succeeded", 630, "d"))

    assert judged(log, d=(620, 700, OK), e=(640, 650, OK)) == [
        "e, claim 1: began while the probe d ran",
        "e, claim 1: was claimed while the claim of the probe d was in force",
    ]


def test_a_probe_may_begin_once_the_last_one_has_lost_its_lease() -> None:
    log = [("lease_expired", 640, "d") if each == ("succeeded", 630, "d") else each for each in LOG]

    assert judged(log, d=(620, 700, OK)) == []
    assert judged(log, d=(620, 700, OK), e=(639, 650, OK)) == [
        "e, claim 1: began while the probe d ran"
    ]


def test_a_scope_whose_lost_probe_has_no_successor_is_reported() -> None:
    log = [*without(*LOG[-3:]), ("lease_expired", 640, "d")]

    assert judged(log, e=RUNS["e"])[0] == (
        "h is not open, and no probe has begun since that of d has ended"
    )


def test_a_scope_that_no_probe_opens_is_reported() -> None:
    assert judged(LOG[:7])[0] == "h is not open, and no probe has begun since its pause"


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (without(("scope_paused", 120, "b")), "b, claim 1: is failure 2 within the window"),
        (without(("retried", 110, "a")), "b, claim 1: paused its scope with failure 1 within"),
        (without(("claimed", 640, "e")), "e ran in claim 1, which the log does not have"),
    ],
)
def test_a_wrong_count_of_failures_and_a_lost_claim_are_reported(log: Any, says: str) -> None:
    assert any(each.startswith(says) for each in judged(log))


def test_a_probe_that_fails_must_pause_its_scope() -> None:
    log = [("retried", 630, "d") if each == ("succeeded", 630, "d") else each for each in LOG]

    assert judged(log, d=(620, 629, FAILED))[0] == (
        "d, claim 1: is a probe that failed, and its scope was not paused"
    )


def test_more_failed_runs_than_the_limit_and_those_in_flight_are_reported() -> None:
    """Checks a run that failed according to its line, but was given back according to the log."""
    log = [("rolled_back", 105, "c"), *(each for each in LOG if each[2] != "c")]
    log.sort(key=lambda each: each[1])
    log.insert(0, ("claimed", 100, "c"))

    assert judged(log, c=(101, 104, FAILED))[0] == (
        "b, claim 1: is one of 3 failed runs, 0 of them in flight at the pause"
    )


def test_a_failure_or_a_success_without_the_handlers_line_is_reported() -> None:
    assert judged(LOG, a=(101, 109, OK)) == [
        "a, claim 1: failed in the log, and not by its handler's line"
    ]
    assert judged(LOG, e=(640, 650, FAILED)) == [
        "e, claim 1: succeeded in the log, and not by its handler's line"
    ]
