"""Sums the counts of all worker processes of one ``rq-core worker``. Processes that have ended still count, so no sum
ever decreases."""

from __future__ import annotations

import threading
from collections import Counter

from rq_core.worker.claim_counters import FlowTable, Row, Vitals, added


class FlowTotals:
    """The sums of what all worker processes have counted (claims, outcomes, times). Processes that have ended still
    count.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[int, FlowTable] = {}
        """The counts of the live processes, by the number of the process."""
        self._departed: dict[tuple[str, str], Row] = {}
        self._departed_turns: tuple[float, float] = (0.0, 0.0)
        self._replaced: Counter[str] = Counter({"retired": 0, "died": 0})

    def join(self, place: int, table: FlowTable) -> None:
        """Add a new process, which counts into ``table``. ``place`` is the number of the process. A process that
        replaces another gets the same number."""
        with self._lock:
            self._tables[place] = table

    def depart(self, place: int, why: str | None = None) -> None:
        """Remove the ended process with the number ``place``, and keep its counts in the sums.

        ``why`` is "retired" or "died" if another process replaces it for this reason. None: no process replaces the
        ended one, or the process was restarted because its code has changed.
        """
        # Scrapes sum under the same lock, so that each counts an ended process exactly once.
        with self._lock:
            table = self._tables.pop(place, None)
            if table is not None:
                _add(self._departed, table)
                self._departed_turns = _turns(self._departed_turns, table.vitals())
            if why is not None:
                self._replaced[why] += 1

    def sums(self) -> dict[tuple[str, str], Row]:
        """Return the counts of all processes, by queue and task."""
        with self._lock:
            total = dict(self._departed)
            for table in self._tables.values():
                _add(total, table)
        return total

    def turns(self) -> tuple[float, float]:
        """Return the number of round trips of all processes, and the total seconds that they took."""
        with self._lock:
            total = self._departed_turns
            for table in self._tables.values():
                total = _turns(total, table.vitals())
        return total

    def vitals(self) -> list[Vitals]:
        """Return, for each live process, the times and the memory that show whether it works (Vitals). Processes whose
        worker has not started, or claims no more, are left out.
        """
        with self._lock:
            found = [table.vitals() for table in self._tables.values()]
        return [each for each in found if each.answered_at]

    @property
    def processes(self) -> int:
        """The number of live processes."""
        return len(self._tables)

    @property
    def replaced(self) -> dict[str, int]:
        """The number of processes that were replaced, by reason: "retired" or "died"."""
        with self._lock:
            return dict(self._replaced)


def _add(total: dict[tuple[str, str], Row], table: FlowTable) -> None:
    for key, row in table.read().items():
        total[key] = added(total.get(key), row)


def _turns(total: tuple[float, float], of: Vitals) -> tuple[float, float]:
    return total[0] + of.turns, total[1] + of.turns_s
