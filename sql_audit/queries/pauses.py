"""Finds the times in which no worker could claim a job, for another reason than a cap or a rate: the job's pauses.

In a pause, the job was scheduled or parked, or a lost worker still held the job's claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rq_core.model.durable.boxes import MAP_PREFIX, signal_of
from rq_core.model.durable.children import read_child_wait
from rq_core.model.table.machine import Event, State
from rq_core.model.table.reasons import Reason
from sql_audit.queries.history import LoggedEvent
from sql_audit.times import readable


@dataclass(frozen=True, slots=True)
class JobPause:
    """A time in which no worker could claim the job: it was scheduled or parked, or a lost worker still held it."""

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
    """Yield the times in which no worker could claim a job, although no cap and no rate was the reason. ``events`` are
    the job's events, in order; ``last_ms`` is the time of the queue's last event (Unix ms).

    The pause of a scheduled job ends when the job is due, or at its next event, if that comes first.
    """
    claimed: LoggedEvent | None = None
    parked: LoggedEvent | None = None
    waits = _Waits()
    told = [event for event in events if not event.orphaned]
    moves = iter([event for event in told if event.type not in _ASIDE])
    after = next(moves, None)
    for event in told:
        if event is not after:
            waits.note(event)
            continue
        after = next(moves, None)
        if parked is not None and event.detail.get("state") == State.PARKED:
            continue  # A baseline states again that the job is parked.
        if parked is not None:
            yield JobPause(parked.at_ms, event.at_ms, waits.say(parked, event))
            parked = None
        if event.type == Event.CLAIMED:
            claimed = event
        elif event.type == Event.LEASE_EXPIRED and claimed is not None:
            why = f"claim {claimed.claim} by {claimed.worker} was in force: its worker was lost, and the lease ran out"
            yield JobPause(claimed.at_ms, event.at_ms, why)
        elif event.type == Event.PARKED:
            parked = event
        elif (due_ms := event.detail.get("due_ms")) is not None:
            until_ms = min(due_ms, last_ms if after is None else after.at_ms)
            if until_ms > event.at_ms or after is None:
                goes_on = after is None and due_ms > last_ms
                yield JobPause(event.at_ms, None if goes_on else until_ms, _why(event))
    if parked is not None:
        yield JobPause(parked.at_ms, None, waits.say(parked, None))


_ASIDE: Final = (
    Event.SETTLEMENT_REFUSED, Event.FREED, Event.STEP_BEGUN, Event.STEP_SAVED, Event.SIGNALLED,
    Event.SIGNAL_LOST,
)  # fmt: skip
"""Types of events that change neither the job's state nor its claim."""


@dataclass
class _Waits:
    """The waits of a durable job, each with a phrase that says what the job waits for. ``signals`` has the last signal
    of each name.
    """

    entries: dict[int, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    """The name of the signal for which each wait waits, by the wait's number among the job's steps."""
    signals: dict[str, LoggedEvent] = field(default_factory=dict)
    maps: dict[int, str] = field(default_factory=dict)
    """The names of the ``map`` and ``run`` calls with which the job has enqueued children, by their numbers among the
    job's steps."""

    def note(self, event: LoggedEvent) -> None:
        """Note a signal, or a step in which a wait begins. Other events are ignored."""
        detail = event.detail
        if str(detail.get("name")).startswith(MAP_PREFIX) and "entry" in detail:
            self.maps[detail["entry"]] = detail["name"].removeprefix(MAP_PREFIX)
        if event.type == Event.SIGNALLED:
            self.signals[detail["name"]] = event
        elif event.type == Event.STEP_BEGUN and detail.get("kind") is not None:
            name, until_ms = detail["name"], detail.get("until_ms")
            until = "" if until_ms is None else f" until {readable(until_ms)}"
            if detail["kind"] == "wait":
                self.names[detail["entry"]] = signal_of(name)
                waited = self._child_of(name) or f"the signal {signal_of(name)}"
                self.entries[detail["entry"]] = f"{waited}{until}"
            else:
                self.entries[detail["entry"]] = f"the end of its sleep {name}{until}"

    def _child_of(self, name: str) -> str:
        """Return a phrase that names a child, if a wait or a signal of this name is for the child's end; otherwise an
        empty text.
        """
        place = read_child_wait(name)
        if place is None:
            return ""
        launch = self.maps.get(place[0])
        if launch is None:
            return f"child {place[1]} of the children that entry {place[0]} has enqueued"
        return f"child {place[1]} of {launch}"

    def say(self, parked: LoggedEvent, after: LoggedEvent | None) -> str:
        """Return a sentence about a parked job: what the job waited for, and what woke it."""
        numbers = [int(number) for number in str(parked.detail["waits"]).split(",")]
        waited = [self.entries.get(each, f"entry {each} of its steps") for each in numbers]
        said = f"it was parked, and waited for {', '.join(waited)}"
        if after is None or after.type != Event.WOKEN:
            return said if after is None else f"{said}; it was {after.type}"
        cause = after.detail.get("cause")
        if cause is None:
            return f"{said}; its moment came"
        signal = self.signals.get(self.names.get(cause, ""))
        if signal is None:
            return f"{said}; its signal came"
        why = signal.detail.get("why")
        child = self._child_of(signal.detail["name"])
        sent = (
            f"reported the end of {child}" if child else f"sent the signal {signal.detail['name']}"
        )
        by = f"{signal.worker} {sent}"
        return f"{said}; {by}" + (f": {why}" if why else "")


def _why(event: LoggedEvent) -> str:
    reason = event.detail.get("reason")
    if event.type == Event.ROLLED_BACK:
        said = _GIVEN_BACK.get(Reason(reason)) if reason in set(Reason) else None
        return (said or "{worker} gave it back: {reason}").format(
            worker=event.worker, reason=reason
        )
    return _DELAYS.get(Event(event.type), event.type)
