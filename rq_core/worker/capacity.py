"""A worker's places: how many are free, and how they are divided between the worker's queues. A place lets one handler
run.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rq_core.worker.options import WorkerOptions
from rq_core.worker.queue_group import QueueGroup, QueueGroups
from rq_core.worker.wakeups import WatchedQueue

CLAIM_MAX: Final = 250
"""Maximum number of jobs in one claim, so that no claim blocks Redis for other clients for long. The next round trip
claims more."""
HALVES_MIN: Final = 16
"""Number of places (handlers that may run at once) from which on one claim asks for at most half of them. A worker with
fewer places would make twice as many calls, and these calls would cost Redis more than the worker gains."""
LEND_AFTER_S: Final = 0.5
"""Seconds after which the places (room for handlers) that are reserved for an unanswered claim may be used for other
queues."""


class Capacity:
    """Counts a worker's places: how many handlers may run at once, and how many places are in use.

    A place is in use if it has a job, or if it is reserved for a claim under way.
    """

    def __init__(self, options: WorkerOptions) -> None:
        self.most = options.concurrency
        self.turns = 2 if self.most >= HALVES_MIN else 1
        """Maximum number of turns (round trips that claim and settle) of a group of queues that are under way at once.
        With two turns, one of them brings jobs for half of the places while Redis works on the other."""
        self.taken = 0
        self.kept = 0
        """Number of places that are reserved for claims under way. They are part of ``taken``."""
        self.on_reserve: Callable[[str, int], None] | None = None
        """A function that is called whenever places are reserved for a claim of a queue, or released. Its arguments are
        the queue and the change; for a batch task's queue, the change is a number of jobs. None: the worker has no
        batch tasks."""
        self.shares = Shares(options.weights, alone=len(options.queues) == 1)

    def full(self) -> bool:
        """Return whether no place is free, so that no further handler can start."""
        return self.taken >= self.most

    def busy(self) -> int:
        """Return how many places (room for handlers) are used by jobs. Places that are reserved for claims do not
        count.
        """
        return self.taken - self.kept

    def for_one_claim(self) -> int:
        """Return how many of the free places (room for handlers) one claim may use. In a worker with at least
        HALVES_MIN places, the number is at most half of all places, so that a burst of jobs also reaches other idle
        workers.
        """
        free = self.most - self.taken
        return min(free, -(-self.most // 2)) if self.most >= HALVES_MIN else free

    def has_room(self, queue: str) -> bool:  # noqa: ARG002 - batches have room in a place that is taken
        """Return whether a worker without a free place can take another job of this queue. Only the jobs of batch tasks
        share places.
        """
        return False

    def claims(
        self, group: QueueGroup, groups: QueueGroups, most: float
    ) -> list[tuple[WatchedQueue, int]]:
        """Return the claims to send now for a group of queues, as (queue, number of jobs) pairs, with at most ``most``
        jobs in all. A group is the queues whose calls are sent together.

        If no further handler may start, only queues that should be called now are returned, with the number 0: such a
        call only ends expired leases and makes due jobs ready.
        """
        mine = [queue for queue in group.queues.values() if queue.promising]
        if not mine:
            return []
        free = int(min(self.for_one_claim(), most))
        if free <= 0:
            # A full worker also calls a queue in which work is due.
            now = time.monotonic()
            return [(queue, 0) for queue in mine if queue.overdue(now)]
        rivals = []
        if len(groups.all) > 1:
            # Places that other groups could use now are left to them; a group that waits for an answer cannot use any
            # place.
            others = [o for o in groups.all if o is not group and not o.turns]
            rivals = [queue for other in others for queue in other.queues.values() if queue.look]
        shares = self.shares.divide(free, [queue.name for queue in (*mine, *rivals)])
        return [(queue, min(n, CLAIM_MAX)) for queue in mine if (n := shares[queue.name]) > 0]

    def reserve(self, queue: str, places: int, groups: QueueGroups) -> Callable[[], None]:
        """Reserve places (room for handlers) for the jobs of a claim. Return the function that releases the places. For
        a batch task's queue, ``places`` is a number of jobs.

        In a cluster, the worker sends the calls for each queue separately. If a claim has no answer after LEND_AFTER_S,
        its places may be used for other queues. So an outage of one shard does not occupy the worker. If the claim
        still brings jobs, and no place is free, the worker gives the jobs back.
        """
        self.taken += places
        self.kept += places
        if self.on_reserve is not None:
            self.on_reserve(queue, places)
        kept = places

        def release() -> None:
            nonlocal kept
            if not kept:
                return
            self.taken -= kept
            self.kept -= kept
            if self.on_reserve is not None:
                self.on_reserve(queue, -kept)
            kept = 0
            for group in groups.all:
                group.watcher.freed()
            if len(groups.all) > 1:
                groups.news.set()

        if len(groups.all) == 1 or not places:
            return release
        lending = asyncio.get_running_loop().call_later(LEND_AFTER_S, release)

        def end() -> None:
            lending.cancel()
            release()

        return end


# Division of a worker's free places between its queues: by weight, and without starving a queue.
#
# Each queue has a virtual clock. A place that a queue receives moves its clock on by 1/weight, and the queue with the
# lowest clock is next. A queue without jobs does not save up turns, so the others use its places.


class Shares:
    """Divides a worker's free places between queues by weight. A place lets one handler run.

    Each queue has a virtual clock, and the queue with the lowest clock gets the next place. A place advances the clock
    by 1/weight.
    """

    def __init__(self, weights: Mapping[str, int], *, alone: bool = False) -> None:
        """``weights``: queue → weight; a queue without a weight has 1. ``alone``: true if the worker has only one
        queue, which gets all places.
        """
        self._weights = weights
        self._alone = alone
        self._clocks: dict[str, float] = {}
        self._now = 0.0
        """The lowest virtual clock of a queue when places were last divided."""

    def divide(self, places: int, queues: Sequence[str]) -> dict[str, int]:
        """Return how many of the free ``places`` (handlers that may start) each queue would receive now, if all these
        queues had jobs. Nothing is recorded.
        """
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

    def take(self, queue: str, places: float) -> None:
        """Record that a queue has received places (room for handlers), so that other queues are next: advance the
        queue's virtual clock.
        """
        if not self._alone:
            self._clocks[queue] = self._clock(queue) + places / self._weight(queue)

    def refund(self, queue: str, places: float) -> None:
        """Record that a queue did not use places (room for handlers) that it had received: set the queue's virtual
        clock back.
        """
        if not self._alone:
            self._clocks[queue] = self._clocks.get(queue, self._now) - places / self._weight(queue)

    def _weight(self, queue: str) -> int:
        return self._weights.get(queue, 1)

    def _clock(self, queue: str) -> float:
        return max(self._clocks.get(queue, 0.0), self._now)
