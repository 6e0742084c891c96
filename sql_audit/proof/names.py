"""Who holds the names of unique jobs, as the log tells it (I13).

A name stands until its job ends, or is claimed, or until an instant, whatever becomes of the job. The instants are
forgotten as the log's time passes them, so what is kept is what Redis keeps.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from rq_core.model.names import Stands


class _Holder(NamedTuple):
    job_id: str
    until_ms: int | None
    """Until when the name stands, whatever becomes of the job; None: the job's events say it."""


class Names:
    """The names of one queue that stand."""

    def __init__(self) -> None:
        self._holders: dict[str, _Holder] = {}
        self._ends: list[tuple[int, str]] = []
        """A heap of instants, and the names that stand until then."""

    def __len__(self) -> int:
        return len(self._holders)

    def clear(self) -> None:
        """Forget all."""
        self._holders.clear()
        self._ends.clear()

    def pass_time(self, at_ms: int) -> None:
        """The log has come to this time. A name that stood until then may be taken, even if Redis' clock goes back: a
        claim may have forgotten it."""
        while self._ends and self._ends[0][0] <= at_ms:
            until_ms, name = heapq.heappop(self._ends)
            holder = self._holders.get(name)
            if holder is not None and holder.until_ms == until_ms:
                del self._holders[name]

    def take(self, name: str, job_id: str, stands: Stands, at_ms: int) -> str | None:
        """A job takes a name. Returns another job that holds it, None if there is none."""
        before = self._holders.get(name)
        until_ms = stands.at_ms if stands.how == "until" else None
        self._holders[name] = _Holder(job_id, until_ms)
        if until_ms is not None:
            heapq.heappush(self._ends, (until_ms, name))
        if before is None or before.job_id == job_id:
            return None
        return before.job_id if before.until_ms is None or at_ms < before.until_ms else None

    def end(self, name: str | None, job_id: str) -> None:
        """A job gives up its name, unless that stands until an instant."""
        if name is not None and self._holders.get(name) == (job_id, None):
            del self._holders[name]

    def free(self, name: str) -> str | None:
        """An operator frees a name. Returns the job that held it, None if there is none."""
        holder = self._holders.pop(name, None)
        return None if holder is None else holder.job_id
