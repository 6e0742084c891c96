"""The simulator finds wrong answers to callers who wait for jobs."""

from __future__ import annotations

from typing import Any

import pytest

from rq_core.model.events import Entry, JobEvent, OutboxId
from rq_core.model.outcome import Cancelled, Kept, Outcome, Succeeded
from rq_core.model.result_encoding import pack_result
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS
from rq_core.model.table.machine import Event
from rq_core.protocol.reads.result_reads import Absent, Found
from tests.rigs.simulator.results import Clock, Results

ENDED = 1_000
KEEP = 300
FENCE = "1-1"
RETURNED = {("a", FENCE, "w-1"): pack_result('"mine"'), ("a", FENCE, "w-2"): pack_result('"no"')}
GONE = Absent(None)


def entry(event: Event, by: str = "w-1", **told: Any) -> Entry:
    fields = {field.name: None for field in JOB_EVENT_FIELDS[event]} | {"id": "a"} | told
    return Entry(OutboxId(1, 1), event, ENDED, by, jobs=(JobEvent(0, "a", fields),))


def succeeded(value: str | None = None, missing: str | None = None) -> Outcome[Any]:
    return Succeeded("a", Kept(value, "t") if value else None, missing)


def problems(
    said: Found,
    *,
    now: int = ENDED,
    latest: int = 0,
    keep: int | None = KEEP,
    has_room: bool = True,
) -> list[str]:
    results = Results()
    results.add(entry(Event.ENQUEUED, keep_ms=keep))
    results.add(entry(Event.SUCCEEDED, fence=FENCE))
    clock = Clock(now, max(now, latest))
    return results.problems({"a": said}, RETURNED, clock, has_room=has_room)


def test_the_simulator_requires_that_a_kept_result_comes_from_the_accepted_settlement() -> None:
    assert [] == problems(succeeded('"mine"'))
    assert problems(succeeded('"no"'))
    assert problems(Cancelled("a"))
    assert problems(succeeded('"mine"'), keep=None)


@pytest.mark.parametrize("said", [GONE, succeeded(missing="expired")])
def test_the_simulator_requires_that_a_kept_result_is_readable_until_its_expiry(
    said: Found,
) -> None:
    assert problems(said, now=ENDED + KEEP - 1)
    assert [] == problems(said, now=ENDED + KEEP)
    assert problems(succeeded('"mine"'), now=ENDED + KEEP)


def test_the_simulator_accepts_a_missing_result_after_the_clock_was_set_back() -> None:
    assert [] == problems(GONE, latest=ENDED + KEEP)
    assert [] == problems(succeeded('"mine"'), latest=ENDED + KEEP)


@pytest.mark.parametrize("word", ["evicted", "full"])
def test_the_simulator_accepts_an_evicted_result_only_if_the_results_are_near_their_size_limit(
    word: str,
) -> None:
    assert problems(succeeded(missing=word))
    assert [] == problems(succeeded(missing=word), has_room=False)
    assert [] == problems(GONE, has_room=False)


def test_the_simulator_requires_that_a_live_job_has_no_result_of_an_earlier_job() -> None:
    results = Results()
    results.add(entry(Event.ENQUEUED, keep_ms=KEEP))
    results.add(entry(Event.SUCCEEDED, fence=FENCE))
    results.add(entry(Event.ENQUEUED, keep_ms=KEEP))

    assert results.problems(
        {"a": succeeded('"mine"')}, RETURNED, Clock(ENDED, ENDED), has_room=True
    )
    assert [] == results.problems({}, RETURNED, Clock(ENDED, ENDED), has_room=True)


def test_the_simulator_requires_that_a_job_missing_in_the_log_has_no_result() -> None:
    assert Results().problems(
        {"a": succeeded('"mine"')}, RETURNED, Clock(ENDED, ENDED), has_room=True
    )
    assert [] == Results().problems({"a": GONE}, RETURNED, Clock(ENDED, ENDED), has_room=True)
