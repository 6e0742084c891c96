"""Replays the names of unique jobs (invariant I13), and the ids that are remembered after their jobs' ends (I14).

At most one job at a time holds a unique name. A job holds its name until the job ends or until it is claimed. Or it
holds the name until a fixed time, even if the job ends before. When the log comes to this time, the name is free, as in
Redis.

While an id is remembered, no other job with this id may begin. The time for which an id is remembered is the id's
*window*. Redis forgets an id when its window is over, and may forget an id in a loss. So a window is checked only
within one epoch, and only until the log comes to the end of the window. Like Redis' key ``results``, the replay keeps
only ids whose windows are not over, so memory is bounded.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from rq_core.model.table.machine import Event
from rq_core.model.unique_names import Stands


class _Holder(NamedTuple):
    job_id: str
    until_ms: int | None
    """The job holds the name until this time (Unix ms), even if it ends before. None: an event of the job frees the
    name."""


class HeldNames:
    """The unique names that jobs of one queue hold, and the job that holds each."""

    def __init__(self) -> None:
        self._holders: dict[str, _Holder] = {}
        self._ends: list[tuple[int, str]] = []
        """A heap of pairs: the Unix ms until which a name is held, and the name."""

    def __len__(self) -> int:
        return len(self._holders)

    def clear(self) -> None:
        """Forget all names."""
        self._holders.clear()
        self._ends.clear()

    def pass_time(self, at_ms: int) -> None:
        """Move the replay's time to ``at_ms`` (Unix ms), and free the names that were held until then.

        These names stay free even if Redis' clock goes back, because a claim may have removed them in Redis.
        """
        while self._ends and self._ends[0][0] <= at_ms:
            until_ms, name = heapq.heappop(self._ends)
            holder = self._holders.get(name)
            if holder is not None and holder.until_ms == until_ms:
                del self._holders[name]

    def take(self, name: str, job_id: str, stands: Stands, at_ms: int) -> str | None:
        """Give a unique name to a job. If another job still holds the name, return that job's id; otherwise return
        None.

        ``at_ms`` is the present time of the replay (Unix ms).
        """
        before = self._holders.get(name)
        until_ms = stands.at_ms if stands.how == "until" else None
        self._holders[name] = _Holder(job_id, until_ms)
        if until_ms is not None:
            heapq.heappush(self._ends, (until_ms, name))
        if before is None or before.job_id == job_id:
            return None
        return before.job_id if before.until_ms is None or at_ms < before.until_ms else None

    def end(self, name: str | None, job_id: str) -> None:
        """Free the name ``name`` if the job ``job_id`` holds it, unless the job holds it until a fixed time."""
        if name is not None and self._holders.get(name) == (job_id, None):
            del self._holders[name]

    def free(self, name: str) -> str | None:
        """Free a unique name, as an operator does. Return the id of the job that held it; None if no job did."""
        holder = self._holders.pop(name, None)
        return None if holder is None else holder.job_id


LEAVES_NONE: Final = frozenset({Event.REPLACED, Event.REMOVED})
"""Types of events that end a job without making Redis remember its id. Either the job was never claimed, or another
event records its end."""


class Windows:
    """The ids of a queue that Redis remembers after their jobs ended, and until when. No other job may use them."""

    def __init__(self) -> None:
        self._until: dict[str, int] = {}
        """Unix ms up to which an id is remembered, by id."""
        self._by_end: list[tuple[int, str]] = []
        self._latest = 0
        """The latest time of an event in the current epoch (Unix ms)."""

    def forget(self) -> None:
        """Forget all ids, because Redis may have lost them."""
        self._until.clear()
        self._by_end.clear()
        self._latest = 0

    def pass_to(self, at_ms: int) -> None:
        """Move the replay's time forward to ``at_ms`` (Unix ms), and drop the ids that Redis remembers no longer. The
        time never goes back.
        """
        self._latest = max(self._latest, at_ms)
        while self._by_end and self._by_end[0][0] <= self._latest:
            until, job_id = heapq.heappop(self._by_end)
            if self._until.get(job_id) == until:
                del self._until[job_id]

    def ended(self, job_id: str, event: Event, claims: int | None, once_ms: int | None) -> None:
        """Note that ``event`` ended a job with ``claims`` claims (None: not known). The id is remembered until
        ``once_ms`` (Unix ms; None: not at all) if the job was ever claimed and ``event`` is not in LEAVES_NONE.
        """
        if once_ms is not None and claims and event not in LEAVES_NONE and once_ms > self._latest:
            self._until[job_id] = once_ms
            heapq.heappush(self._by_end, (once_ms, job_id))

    def until(self, job_id: str) -> int | None:
        """Return the time (Unix ms) until which an id is remembered; None if the id is not known to be remembered."""
        return self._until.get(job_id)
