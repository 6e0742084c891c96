"""Judges whether caps held.

One judge compares the claims in the log with the cap that each ``claimed`` event carries (I3). The other judge counts
the runs of handlers that overlap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from rq_core.model.events import Entry, JobEvent
from rq_core.model.table.machine import Event
from tests.rigs.judge.logged import CLAIM_ENDS


class Holders:
    """The claims in force, and how many of them hold a place in each scope."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self._scopes: dict[str, frozenset[str]] = {}

    def claim(self, job_id: str, scopes: Iterable[str]) -> None:
        self.end(job_id)
        self._scopes[job_id] = frozenset(scopes)
        self.held.update(self._scopes[job_id])

    def end(self, job_id: str) -> frozenset[str]:
        """End the claim of a job, and return its scopes. Return no scopes if the job was not claimed."""
        scopes = self._scopes.pop(job_id, frozenset())
        self.held.subtract(scopes)
        return scopes

    def __len__(self) -> int:
        return len(self._scopes)


class Proof:
    """The claims in force after each entry of the log. It finds each claim that exceeds a cap."""

    def __init__(self) -> None:
        self._tasks: dict[str, str] = {}
        self._holders = Holders()

    def add(self, entry: Entry) -> list[str]:
        """Add the next entry. Return a sentence for each place that its claims took in a full scope."""
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
    """Return a sentence for each place that a claim in the log took in a full scope."""
    proof = Proof()
    return [why for entry in entries for why in proof.add(entry)]


def _full(event: JobEvent, holders: Holders) -> list[str]:
    """Return a sentence for each scope of a ``claimed`` event that was already full."""
    return [
        f"{scope} has {holders.held[scope]} of {cap[0]}"
        for scope, *cap in event.fields["scopes"] or []
        if len(cap) == 1 and cap[0] is not None and holders.held[scope] >= cap[0]
    ]


def most_running(entries: Iterable[Entry]) -> int:
    """Return the highest number of claims that were in force at the same time."""
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
    """The beginning (``change`` is 1) or the end (-1) of a run in a scope."""

    at: float
    change: int
    scope: str
    job: str


def at_once(marks: Iterable[Mark]) -> Iterator[tuple[Mark, int]]:
    """Yield each beginning of a run, with the number of runs in its scope after it.

    An end and a beginning may have the same time. The end then counts first, since a handler records its end before its
    job is settled.
    """
    running: Counter[str] = Counter()
    for mark in sorted(marks):
        running[mark.scope] += mark.change
        if mark.change > 0:
            yield mark, running[mark.scope]


def peaks(lines: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the highest number of runs at the same time, by queue, according to the witness lines."""
    marks = [
        Mark(line["at"], 1 if line["what"] == "start" else -1, line["queue"], line["job"])
        for line in lines
    ]
    most: dict[str, int] = {}
    for mark, running in at_once(marks):
        most[mark.scope] = max(most.get(mark.scope, 0), running)
    return most
