"""I14: while an id is remembered after its job's end, no other job of that id begins.

Redis forgets an id once its clock has passed the moment up to which it is remembered, and with all else that a loss
takes. So a window is judged within one epoch, and only as long as the log's clock has not passed its end. What is kept
here is bounded, as ``results`` is.
"""

from __future__ import annotations

import heapq
from typing import Final

from rq_core.model.machine import Event

LEAVES_NONE: Final = frozenset({Event.REPLACED, Event.REMOVED})
"""Ends after which an id is not remembered: the job was never claimed, or its end is told elsewhere."""


class Windows:
    """The ids of a queue that are remembered after their jobs' ends."""

    def __init__(self) -> None:
        self._until: dict[str, int] = {}
        """Id → up to when it is remembered (Unix ms)."""
        self._by_end: list[tuple[int, str]] = []
        self._latest = 0
        """The latest moment that the log has told of, in this epoch (Unix ms)."""

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
        """Up to when an id is remembered (Unix ms); None: it is free, or what Redis remembers is not known."""
        return self._until.get(job_id)
