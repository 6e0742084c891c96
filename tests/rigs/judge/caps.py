"""Whether the log alone proves the caps (I3), from the cap that every claimed event carries."""

from collections import defaultdict
from collections.abc import Iterable

from rq_core.model.events import Entry, JobEvent
from rq_core.model.machine import Event

_ENDS = {
    Event.SUCCEEDED,
    Event.RETRIED,
    Event.DIED,
    Event.ROLLED_BACK,
    Event.LEASE_EXPIRED,
    Event.CANCELLED,
}


class Proof:
    """The claims in force, entry by entry, and whether each was justified."""

    def __init__(self) -> None:
        self._tasks: dict[str, str] = {}
        self._claimed: dict[str, set[str]] = {}

    def add(self, entry: Entry) -> list[str]:
        """What the next entry claims though a scope that it names was full already."""
        found = []
        for event in entry.jobs:
            if entry.event is Event.ENQUEUED:
                self._tasks[event.job_id] = f"task={event.fields['task']}"
            elif entry.event is Event.CLAIMED:
                full = _full(event, self._claimed)
                found += [f"{entry.id}: {event.job_id}, {why}" for why in full]
                listed = {each[0] for each in event.fields["scopes"] or []}
                self._claimed[event.job_id] = listed | {self._tasks[event.job_id]}
            elif entry.event in _ENDS:
                self._claimed.pop(event.job_id, None)
        return found


def unproved(entries: Iterable[Entry]) -> list[str]:
    """Claims that the log does not justify: a scope that it names was full already."""
    proof = Proof()
    return [why for entry in entries for why in proof.add(entry)]


def _full(event: JobEvent, claimed: dict[str, set[str]]) -> list[str]:
    """Which of the scopes that a claimed event names were full before it."""
    held: dict[str, int] = defaultdict(int)
    for scopes in claimed.values():
        for scope in scopes | {"queue"}:
            held[scope] += 1
    return [
        f"{scope} has {held[scope]} of {cap[0]}"
        for scope, *cap in event.fields["scopes"] or []
        if len(cap) == 1 and cap[0] is not None and held[scope] >= cap[0]
    ]


def most_running(entries: Iterable[Entry]) -> int:
    """The greatest number of claims that were in force at once."""
    running: set[str] = set()
    most = 0
    for entry in entries:
        for event in entry.jobs:
            if entry.event is Event.CLAIMED:
                running.add(event.job_id)
                most = max(most, len(running))
            elif entry.event in _ENDS:
                running.discard(event.job_id)
    return most
