"""Names of unique jobs that are held (I13), and ids that are remembered after their jobs' ends (I14), as the log says.

A name is held until its job ends, or is claimed, or until an instant, whatever becomes of the job. The instants are
forgotten as the log's time passes them, as in Redis.

While an id is remembered, no other job of that id begins. Redis forgets an id once its clock has passed the moment up
to which it is remembered, and with all else that a loss takes. So a window is judged within one epoch, and only as long
as the log's clock has not passed its end. What is kept here is bounded, as ``results`` is.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from rq_core.model.table.machine import Event
from rq_core.model.unique_names import Stands


class _Holder(NamedTuple):
    job_id: str
    until_ms: int | None
    """The time until which the name is held, whatever becomes of the job (Unix ms); None: the job's events end it."""


class HeldNames:
    """The names of one queue that are held."""

    def __init__(self) -> None:
        self._holders: dict[str, _Holder] = {}
        self._ends: list[tuple[int, str]] = []
        """A heap of instants, and the names that are held until then."""

    def __len__(self) -> int:
        return len(self._holders)

    def clear(self) -> None:
        """Forget all."""
        self._holders.clear()
        self._ends.clear()

    def pass_time(self, at_ms: int) -> None:
        """Move the log's time to this one. A name that was held until then may be taken, even if Redis' clock goes
        back: a claim may have forgotten it."""
        while self._ends and self._ends[0][0] <= at_ms:
            until_ms, name = heapq.heappop(self._ends)
            holder = self._holders.get(name)
            if holder is not None and holder.until_ms == until_ms:
                del self._holders[name]

    def take(self, name: str, job_id: str, stands: Stands, at_ms: int) -> str | None:
        """Let a job take a name. Returns another job that holds it, or None."""
        before = self._holders.get(name)
        until_ms = stands.at_ms if stands.how == "until" else None
        self._holders[name] = _Holder(job_id, until_ms)
        if until_ms is not None:
            heapq.heappush(self._ends, (until_ms, name))
        if before is None or before.job_id == job_id:
            return None
        return before.job_id if before.until_ms is None or at_ms < before.until_ms else None

    def end(self, name: str | None, job_id: str) -> None:
        """Let a job give up its name, unless the name is held until an instant."""
        if name is not None and self._holders.get(name) == (job_id, None):
            del self._holders[name]

    def free(self, name: str) -> str | None:
        """Free a name, as an operator does. Returns the job that held it, or None."""
        holder = self._holders.pop(name, None)
        return None if holder is None else holder.job_id


LEAVES_NONE: Final = frozenset({Event.REPLACED, Event.REMOVED})
"""Ends after which an id is not remembered: the job was never claimed, or its end is in another event."""


class Windows:
    """The ids of a queue that are remembered after their jobs' ends."""

    def __init__(self) -> None:
        self._until: dict[str, int] = {}
        """Id → up to when it is remembered (Unix ms)."""
        self._by_end: list[tuple[int, str]] = []
        self._latest = 0
        """The latest time of an event in this epoch (Unix ms)."""

    def forget(self) -> None:
        """Forget all: Redis may have lost what it remembered."""
        self._until.clear()
        self._by_end.clear()
        self._latest = 0

    def pass_to(self, at_ms: int) -> None:
        """The log's clock shows this moment."""
        self._latest = max(self._latest, at_ms)
        while self._by_end and self._by_end[0][0] <= self._latest:
            until, job_id = heapq.heappop(self._by_end)
            if self._until.get(job_id) == until:
                del self._until[job_id]

    def ended(self, job_id: str, event: Event, claims: int | None, once_ms: int | None) -> None:
        """A job has left Redis by this event."""
        if once_ms is not None and claims and event not in LEAVES_NONE and once_ms > self._latest:
            self._until[job_id] = once_ms
            heapq.heappush(self._by_end, (once_ms, job_id))

    def until(self, job_id: str) -> int | None:
        """Return the time up to which an id is remembered (Unix ms); None: it is free, or Redis' memory is not
        known."""
        return self._until.get(job_id)
