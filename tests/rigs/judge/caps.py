"""Judges whether caps held: from the log alone, by the cap in each claim (I3), or from the overlaps of the handlers'
runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from rq_core.model.events import Entry, JobEvent
from rq_core.model.table.machine import Event
from tests.rigs.judge.logged import CLAIM_ENDS


class Holders:
    """The claims in force, and the number of claims that hold a place in each scope."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self._scopes: dict[str, frozenset[str]] = {}

    def claim(self, job_id: str, scopes: Iterable[str]) -> None:
        self.end(job_id)
        self._scopes[job_id] = frozenset(scopes)
        self.held.update(self._scopes[job_id])

    def end(self, job_id: str) -> frozenset[str]:
        """End the claim of a job, and return the scopes that the claim held. If the job was not claimed, no scope is
        returned."""
        scopes = self._scopes.pop(job_id, frozenset())
        self.held.subtract(scopes)
        return scopes

    def __len__(self) -> int:
        return len(self._scopes)


class Proof:
    """The claims in force after each entry, and whether each claim was within its caps."""

    def __init__(self) -> None:
        self._tasks: dict[str, str] = {}
        self._holders = Holders()

    def add(self, entry: Entry) -> list[str]:
        """Add the next entry. Return those claims in the entry for which a scope was already full."""
        found = []
        for event in entry.jobs:
            if entry.event is Event.ENQUEUED:
                self._tasks[event.job_id] = f"task={event.fields['task']}"
            elif entry.event is Event.CLAIMED:
                full = _full(event, self._holders)
                found += [f"{entry.id}: {event.job_id}, {why}" for why in full]
                listed = [scope for scope, *_ in event.fields["scopes"] or []]
                self._holders.claim(event.job_id, [*listed, self._tasks[event.job_id], "queue"])
            elif entry.event in CLAIM_ENDS:
                self._holders.end(event.job_id)
        return found


def unproved(entries: Iterable[Entry]) -> list[str]:
    """Return the claims that break a cap according to the log, since one of their scopes was already full."""
    proof = Proof()
    return [why for entry in entries for why in proof.add(entry)]


def _full(event: JobEvent, holders: Holders) -> list[str]:
    """Return the scopes in a claimed event that were full before the event."""
    return [
        f"{scope} has {holders.held[scope]} of {cap[0]}"
        for scope, *cap in event.fields["scopes"] or []
        if len(cap) == 1 and cap[0] is not None and holders.held[scope] >= cap[0]
    ]


def most_running(entries: Iterable[Entry]) -> int:
    """Return the greatest number of claims that were in force at once."""
    holders = Holders()
    most = 0
    for entry in entries:
        for event in entry.jobs:
            if entry.event is Event.CLAIMED:
                holders.claim(event.job_id, ())
                most = max(most, len(holders))
            elif entry.event in CLAIM_ENDS:
                holders.end(event.job_id)
    return most


class Mark(NamedTuple):
    """The beginning (1) or the end (-1) of a run in a scope."""

    at: float
    change: int
    scope: str
    job: str


def at_once(marks: Iterable[Mark]) -> Iterator[tuple[Mark, int]]:
    """Yield each beginning with the number of runs in its scope at that time, including the new run.

    If an end and a beginning have the same time, the end comes first, since a handler records its end before the job is
    settled.
    """
    running: Counter[str] = Counter()
    for mark in sorted(marks):
        running[mark.scope] += mark.change
        if mark.change > 0:
            yield mark, running[mark.scope]


def peaks(lines: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the highest number of simultaneous runs, by queue, from the records that the jobs wrote."""
    marks = [
        Mark(line["at"], 1 if line["what"] == "start" else -1, line["queue"], line["job"])
        for line in lines
    ]
    most: dict[str, int] = {}
    for mark, running in at_once(marks):
        most[mark.scope] = max(most.get(mark.scope, 0), running)
    return most
