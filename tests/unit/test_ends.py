"""The end of each job that has left Redis, as its events show it."""

from __future__ import annotations

from typing import Any

from rq_core.model.events import Entry, JobEvent, OutboxId
from rq_core.model.job_ends import Lives
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS
from rq_core.model.table.machine import Event


def tell(lives: Lives, number: int, event: Event, **facts: Any) -> None:
    """Apply an event of job `a`. Its number in the log is also its time (Unix ms)."""
    names = (field.name for field in JOB_EVENT_FIELDS[event])
    told = JobEvent(0, "a", dict.fromkeys(names) | {"id": "a"} | facts)
    lives.add(Entry(OutboxId(1, number), event, number, "w-1", jobs=(told,)), told)


def ended() -> Lives:
    lives = Lives()
    tell(lives, 1, Event.ENQUEUED, task="t", keep_ms=50, once_ms=90, call_digest="c")
    tell(lives, 2, Event.CLAIMED, claim=1)
    tell(lives, 3, Event.SUCCEEDED, fence="1-2")
    return lives


def test_the_end_of_a_job_in_the_log_names_the_task_and_the_enqueue_call() -> None:
    end = ended().ends["a"]

    assert (end.fence, end.since_ms, end.until_ms, end.once_ms) == ("1-2", 3, 53, 90)
    assert end.asked is not None
    assert (end.asked.task, end.asked.call) == ("t", "c")


def test_a_job_whose_enqueue_is_missing_in_the_log_gets_no_field_of_an_earlier_job_with_its_id() -> (
    None
):
    lives = ended()
    tell(lives, 7, Event.SUCCEEDED, fence="1-6")

    assert lives.ends["a"].fence == "1-6"
    assert lives.ends["a"].asked is None


def test_a_refused_settlement_after_the_end_of_a_job_changes_nothing() -> None:
    lives = ended()
    tell(lives, 4, Event.SETTLEMENT_REFUSED, fence="1-2", reason="gone")

    assert lives.ends == ended().ends


def test_a_job_that_is_enqueued_again_has_no_end() -> None:
    lives = ended()
    tell(lives, 4, Event.ENQUEUED, task="t")

    assert lives.ends == {}


def test_a_pruned_job_is_reported_as_ended_when_it_died_and_not_when_it_was_pruned() -> None:
    lives = Lives()
    tell(lives, 1, Event.ENQUEUED, task="t", keep_ms=50)
    tell(lives, 2, Event.CLAIMED, claim=1)
    tell(lives, 3, Event.DIED, fence="1-2", reason="final", failures=1)
    tell(lives, 4, Event.PRUNED)

    end = lives.ends["a"]
    assert (end.since_ms, end.died_of, end.until_ms) == (3, "final", 54)


def test_if_entries_of_the_outbox_are_missing_the_ends_of_all_jobs_are_unknown() -> None:
    lives = ended()
    lives.miss()

    assert (lives.ends, lives.began) == ({}, {})
