"""Finds the pauses of a job: times in which no worker could claim the job for another reason than a limit.

Either the job was scheduled, or a lost worker still held its claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rq_core.model.table.machine import Event
from rq_core.model.table.reasons import Reason
from sql_audit.queries.history import LoggedEvent


@dataclass(frozen=True, slots=True)
class JobPause:
    """A time in which no worker could claim the job."""

    since_ms: int
    until_ms: int | None
    """Unix ms of the end; None if the pause has not ended."""
    why: str


_DELAYS: Final = {
    Event.ENQUEUED: "it was enqueued with a delay",
    Event.RETRIED: "its last attempt failed, and the next one has a delay",
    Event.EDITED: "it was edited to run later",
    Event.RESTORED: "it was restored, and was not due yet",
}
_GIVEN_BACK: Final = {
    Reason.SUSPECT: "a suspect, since it had lost a worker: another suspect ran in the process of {worker}",
    Reason.SNOOZED: "its handler raised Snooze",
    Reason.UNKNOWN_TASK: "{worker} does not have its task",
    Reason.UNKNOWN_ARGUMENTS: "the task of {worker} does not take its arguments",
}


def pauses_of(events: Sequence[LoggedEvent], last_ms: int) -> Iterator[JobPause]:
    """Yield the pauses of a job. ``events`` are its events, in order; ``last_ms`` is the time of the queue's last event
    (Unix ms).

    A delay ends when the job is due: from then on the job waits for a worker.
    """
    claimed: LoggedEvent | None = None
    events = [event for event in events if not event.orphaned and event.type not in _ASIDE]
    for at, event in enumerate(events):
        if event.type == Event.CLAIMED:
            claimed = event
        elif event.type == Event.LEASE_EXPIRED and claimed is not None:
            why = f"claim {claimed.claim} by {claimed.worker} was in force: its worker was lost, and the lease ran out"
            yield JobPause(claimed.at_ms, event.at_ms, why)
        elif (due_ms := event.detail.get("due_ms")) is not None:
            goes_on = at + 1 == len(events)
            until_ms = min(due_ms, last_ms if goes_on else events[at + 1].at_ms)
            if until_ms > event.at_ms or goes_on:
                yield JobPause(
                    event.at_ms, None if goes_on and due_ms > last_ms else until_ms, _why(event)
                )


_ASIDE: Final = (Event.SETTLEMENT_REFUSED, Event.FREED)
"""Events that do not move a job."""


def _why(event: LoggedEvent) -> str:
    reason = event.detail.get("reason")
    if event.type == Event.ROLLED_BACK:
        said = _GIVEN_BACK.get(Reason(reason)) if reason in set(Reason) else None
        return (said or "{worker} gave it back: {reason}").format(
            worker=event.worker, reason=reason
        )
    return _DELAYS.get(Event(event.type), event.type)
