"""The counts of all worker processes of this machine, those that have ended included: no sum ever falls."""

from __future__ import annotations

import threading
from collections import Counter

from rq_core.worker.flow import FlowTable, Row


class FlowTotals:
    """Sums the tables of the processes that live and what those that departed left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[int, FlowTable] = {}
        """By place of the process."""
        self._departed: dict[tuple[str, str], Row] = {}
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
            if why is not None:
                self._replaced[why] += 1

    def sums(self) -> dict[tuple[str, str], Row]:
        """What all processes counted, by queue and task."""
        with self._lock:
            total = dict(self._departed)
            for table in self._tables.values():
                _add(total, table)
        return total

    @property
    def processes(self) -> int:
        """How many processes work now."""
        return len(self._tables)

    @property
    def replaced(self) -> dict[str, int]:
        """How many processes were replaced, by why."""
        with self._lock:
            return dict(self._replaced)


def _add(total: dict[tuple[str, str], Row], table: FlowTable) -> None:
    for key, row in table.read().items():
        had = total.get(key)
        total[key] = row if had is None else tuple(a + b for a, b in zip(had, row, strict=True))
