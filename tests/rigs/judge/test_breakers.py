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


def test_the_judge_reports_nothing_for_a_breaker_that_works() -> None:
    assert judged(LOG) == []


def test_the_judge_counts_a_failure_that_is_logged_behind_the_pause_in_one_call_as_a_failure_before_the_pause() -> (
    None
):
    log = [*without(("retried", 110, "a"))]
    log.insert(log.index(("retried", 120, "b")), ("retried", 120, "a"))

    assert judged(log) == []


def test_the_judge_reports_a_handler_that_begins_during_a_pause() -> None:
    assert judged(LOG, d=(619, 629, OK)) == ["d, claim 1: began 1 ms before the end of a pause"]


def test_the_judge_reports_a_second_probe() -> None:
    log = without(("succeeded", 630, "d"))

    assert judged(log, d=(620, 700, OK), e=(640, 650, OK)) == [
        "e, claim 1: began while the probe d ran",
        "e, claim 1: was claimed while the claim of the probe d was in force",
    ]


def test_the_judge_accepts_a_new_probe_only_after_the_last_probe_has_lost_its_lease() -> None:
    log = [("lease_expired", 640, "d") if each == ("succeeded", 630, "d") else each for each in LOG]

    assert judged(log, d=(620, 700, OK)) == []
    assert judged(log, d=(620, 700, OK), e=(639, 650, OK)) == [
        "e, claim 1: began while the probe d ran"
    ]


def test_the_judge_reports_a_scope_in_which_no_probe_follows_a_lost_probe() -> None:
    log = [*without(*LOG[-3:]), ("lease_expired", 640, "d")]

    assert judged(log, e=RUNS["e"])[0] == (
        "h is not open, and no probe has begun since that of d has ended"
    )


def test_the_judge_reports_a_scope_in_which_no_probe_begins_after_the_pause() -> None:
    assert judged(LOG[:7])[0] == "h is not open, and no probe has begun since its pause"


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (without(("scope_paused", 120, "b")), "b, claim 1: is failure 2 within the window"),
        (without(("retried", 110, "a")), "b, claim 1: paused its scope with failure 1 within"),
        (without(("claimed", 640, "e")), "e ran in claim 1, which the log does not have"),
    ],
)
def test_the_judge_reports_a_wrong_number_of_failures_and_a_lost_claim(log: Any, says: str) -> None:
    assert any(each.startswith(says) for each in judged(log))


def test_the_judge_reports_a_failed_probe_that_does_not_pause_its_scope() -> None:
    log = [("retried", 630, "d") if each == ("succeeded", 630, "d") else each for each in LOG]

    assert judged(log, d=(620, 629, FAILED))[0] == (
        "d, claim 1: is a probe that failed, and its scope was not paused"
    )


def test_the_judge_reports_more_failed_runs_than_the_limit_and_the_running_jobs_explain() -> None:
    """Checks a run that failed according to its line, but was given back according to the log."""
    log = [("rolled_back", 105, "c"), *(each for each in LOG if each[2] != "c")]
    log.sort(key=lambda each: each[1])
    log.insert(0, ("claimed", 100, "c"))

    assert judged(log, c=(101, 104, FAILED))[0] == (
        "b, claim 1: is one of 3 failed runs, 0 of them in flight at the pause"
    )


def test_the_judge_reports_a_logged_end_that_contradicts_the_line_that_the_handler_wrote() -> None:
    assert judged(LOG, a=(101, 109, OK)) == [
        "a, claim 1: failed in the log, and not by its handler's line"
    ]
    assert judged(LOG, e=(640, 650, FAILED)) == [
        "e, claim 1: succeeded in the log, and not by its handler's line"
    ]
