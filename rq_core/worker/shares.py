"""How a worker's free places are divided between its queues: by weight, and no queue starves.

Each queue has a clock of its own; a place that it is given moves the clock on by one over its weight, and who is
furthest behind is next. A queue that had nothing to do does not save its turns up, so the others use its share.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence


class Shares:
    """The clocks of some queues."""

    def __init__(self, weights: Mapping[str, int], *, alone: bool = False) -> None:
        """``weights`` by queue; those that are not named have 1. ``alone``: one queue gets all places."""
        self._weights = weights
        self._alone = alone
        self._clocks: dict[str, float] = {}
        self._now = 0.0
        """That of the queue that was furthest behind when places were last divided."""

    def divide(self, places: int, queues: Sequence[str]) -> dict[str, int]:
        """How many of so many places each queue, all of which have something to do, would get now. Takes none."""
        if self._alone:
            return dict.fromkeys(queues, places)
        self._now = min(map(self._clock, queues))
        if len(queues) == 1:
            return {queues[0]: places}
        total = sum(map(self._weight, queues))
        given = {queue: places * self._weight(queue) // total for queue in queues}
        line = [(self._clock(q) + given[q] / self._weight(q), at) for at, q in enumerate(queues)]
        heapq.heapify(line)
        for _ in range(places - sum(given.values())):
            clock, at = line[0]
            given[queues[at]] += 1
            heapq.heapreplace(line, (clock + 1 / self._weight(queues[at]), at))
        return given

    def take(self, queue: str, places: int) -> None:
        """Note that a queue was given places."""
        if not self._alone:
            self._clocks[queue] = self._clock(queue) + places / self._weight(queue)

    def refund(self, queue: str, places: int) -> None:
        """Note that it had no use for some."""
        if not self._alone:
            self._clocks[queue] = self._clocks.get(queue, self._now) - places / self._weight(queue)

    def _weight(self, queue: str) -> int:
        return self._weights.get(queue, 1)

    def _clock(self, queue: str) -> float:
        return max(self._clocks.get(queue, 0.0), self._now)
