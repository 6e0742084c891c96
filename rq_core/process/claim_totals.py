"""The counts of all worker processes of this machine, those that have ended included: no sum ever falls."""

from __future__ import annotations

import threading
from collections import Counter

from rq_core.worker.claim_counters import FlowTable, Row, Vitals, added


class FlowTotals:
    """Sums the tables of the processes that live and what those that departed left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[int, FlowTable] = {}
        """The tables by place of the process."""
        self._departed: dict[tuple[str, str], Row] = {}
        self._departed_turns: tuple[float, float] = (0.0, 0.0)
        self._replaced: Counter[str] = Counter({"retired": 0, "died": 0})

    def join(self, place: int, table: FlowTable) -> None:
        """A process began that counts into ``table``."""
        with self._lock:
            self._tables[place] = table

    def depart(self, place: int, why: str | None = None) -> None:
        """The process at ``place`` ended, however: what it counted stays. ``why`` it is replaced, None if it is not."""
        # Under the lock under which a scrape sums: it sees the counts in one place or in the other.
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
        """How many round trips all processes made, and how many seconds these took."""
        with self._lock:
            total = self._departed_turns
            for table in self._tables.values():
                total = _turns(total, table.vitals())
        return total

    def vitals(self) -> list[Vitals]:
        """Return the vitals of the processes in which a worker works now."""
        with self._lock:
            found = [table.vitals() for table in self._tables.values()]
        return [each for each in found if each.answered_at]

    @property
    def processes(self) -> int:
        """Return how many processes work now."""
        return len(self._tables)

    @property
    def replaced(self) -> dict[str, int]:
        """Return how many processes were replaced, by reason."""
        with self._lock:
            return dict(self._replaced)


def _add(total: dict[tuple[str, str], Row], table: FlowTable) -> None:
    for key, row in table.read().items():
        total[key] = added(total.get(key), row)


def _turns(total: tuple[float, float], of: Vitals) -> tuple[float, float]:
    return total[0] + of.turns, total[1] + of.turns_s
