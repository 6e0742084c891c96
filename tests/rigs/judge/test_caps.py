"""The judges of caps find claims and runs that exceed a cap."""

from __future__ import annotations

from typing import Any

import pytest

from rq_core.model.events import Entry, JobEvent, OutboxId
from rq_core.model.table.machine import Event
from tests.rigs.judge.caps import Mark, at_once, most_running, unproved


def entry(number: int, event: Event, job_id: str, **fields: Any) -> Entry:
    return Entry(OutboxId(1, number), event, number, "w", None, (JobEvent(0, job_id, fields),))


def claimed_in_turn(cap: int | None, end: Event | None) -> list[Entry]:
    """Return entries in which three jobs are enqueued and claimed under a cap.

    Before the claim of the third job, the event ``end`` ends the claim of the first job.
    """
    scopes = [["tenant=x", cap]]
    told = [entry(n, Event.ENQUEUED, job_id, task="send") for n, job_id in enumerate("abc")]
    told += [entry(n, Event.CLAIMED, job_id, scopes=scopes) for n, job_id in ((3, "a"), (4, "b"))]
    told += [] if end is None else [entry(5, end, "a")]
    return [*told, entry(6, Event.CLAIMED, "c", scopes=scopes)]


def test_the_judge_reports_a_claim_beyond_its_cap() -> None:
    log = claimed_in_turn(2, None)

    assert unproved(log) == ["1-6: c, tenant=x has 2 of 2"]
    assert most_running(log) == 3


@pytest.mark.parametrize("cap", [3, None])
def test_the_judge_accepts_a_claim_within_its_cap(cap: int | None) -> None:
    assert unproved(claimed_in_turn(cap, None)) == []


@pytest.mark.parametrize("end", [Event.SUCCEEDED, Event.LEASE_EXPIRED, Event.ROLLED_BACK])
def test_the_judge_counts_a_place_in_a_cap_as_free_once_its_claim_has_ended(end: Event) -> None:
    log = claimed_in_turn(2, end)

    assert unproved(log) == []
    assert most_running(log) == 2


def test_the_judge_does_not_count_a_request_to_cancel_as_the_end_of_a_claim() -> None:
    assert unproved(claimed_in_turn(2, Event.CANCEL_REQUESTED)) != []


def test_a_run_that_begins_at_the_moment_when_another_run_ends_does_not_overlap_it() -> None:
    marks = [
        Mark(1, 1, "s", "a"),
        Mark(2, 1, "s", "b"),
        Mark(2, -1, "s", "a"),
        Mark(1, 1, "t", "c"),
    ]
    beside = [*marks, Mark(1.5, 1, "s", "d")]

    assert [(mark.job, running) for mark, running in at_once(marks)] == [
        ("a", 1), ("c", 1), ("b", 1),
    ]  # fmt: skip
    assert max(running for _, running in at_once(beside)) == 2
