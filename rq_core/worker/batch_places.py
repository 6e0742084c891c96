"""The places of a worker that has batch tasks. A place lets one handler run: for a batch task, one place runs one
batch.

Jobs that wait for their batch to begin share places: a whole batch of them takes one place. So for each free place, a
worker claims up to the number of jobs in a batch.

A batch begins when a place has no handler. If there are more batches than places, batches wait. The worker extends the
leases of the waiting jobs meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rq_core.model.job import Claim
from rq_core.worker.capacity import CLAIM_MAX, Capacity, Shares
from rq_core.worker.execution.batches import BatchExecutor, BatchRun
from rq_core.worker.execution.executor import Executor
from rq_core.worker.execution.running import Running
from rq_core.worker.held_jobs import Handlers, lease_end
from rq_core.worker.lifetime import Lifetime
from rq_core.worker.options import WorkerOptions
from rq_core.worker.queue_group import QueueGroup, QueueGroups
from rq_core.worker.wakeups import WatchedQueue

if TYPE_CHECKING:
    from rq_core.app.app import App

ROWS_MAX: Final = 50_000
"""Highest number of leases for which a supervisor reserves memory."""


def batch_sizes(app: App) -> dict[str, int]:
    """Return queue → batch size, for the queues that batch tasks declare."""
    return {
        task.options.queue: task.batch.size for task in app.tasks.values() if task.batch is not None
    }


def jobs_at_once(app: App, options: WorkerOptions) -> int:
    """Return the maximum number of jobs that a worker may hold at once, running or waiting for their batch.

    The number is at most ROWS_MAX, or ``concurrency`` if that is higher. A supervisor reserves memory for this number
    of leases.
    """
    served = options.serving(app.queues).queues
    sizes = [size for queue, size in batch_sizes(app).items() if queue in served]
    return min(options.concurrency * max(sizes, default=1), max(ROWS_MAX, options.concurrency))


class BatchShares(Shares):
    """Divides a worker's places between queues by weight. A place lets one handler run. A whole batch of jobs takes one
    place.
    """

    def __init__(self, options: WorkerOptions, sizes: Mapping[str, int]) -> None:
        super().__init__(options.weights, alone=len(options.queues) == 1)
        self._sizes = sizes

    def take(self, queue: str, places: float) -> None:
        """Record that a queue has received places (room for handlers), so that other queues are next: advance the
        queue's virtual clock. For the queue of a batch task, ``places`` is a number of jobs.
        """
        super().take(queue, places / self._sizes.get(queue, 1))

    def refund(self, queue: str, places: float) -> None:
        """Record that a queue did not use the places (room for handlers) that it had received: set its virtual clock
        back. For the queue of a batch task, ``places`` is a number of jobs.
        """
        super().refund(queue, places / self._sizes.get(queue, 1))


class BatchCapacity(Capacity):
    """Counts the places of a worker that has batch tasks. A place lets one handler run. A whole batch of jobs takes one
    place.
    """

    def __init__(self, options: WorkerOptions, sizes: Mapping[str, int]) -> None:
        super().__init__(options)
        self.sizes = sizes
        self.shares = BatchShares(options, sizes)
        self.on_reserve = self._reserved
        self._waiting = dict.fromkeys(sizes, 0)
        """Queue → number of its waiting jobs: jobs that have arrived but not begun, and jobs that an unanswered claim
        may bring."""
        self._shared = 0
        """Number of taken places that the jobs in ``_waiting`` share."""
        self._kept_for_batches = 0

    def hold(self, queue: str, jobs: int) -> None:
        """Count this number of further jobs of a batch task's queue that wait for their batch to begin. A negative
        number removes jobs.
        """
        size = self.sizes[queue]
        before = -(-self._waiting[queue] // size)
        self._waiting[queue] += jobs
        change = -(-self._waiting[queue] // size) - before
        self._shared += change
        self.taken += change

    def _reserved(self, queue: str, jobs: int) -> None:
        if queue in self.sizes:
            self.taken -= jobs
            self._kept_for_batches += jobs
            self.hold(queue, jobs)

    def _room(self, queue: str) -> int:
        """Return how many more jobs of the queue can join the batch that is not full yet. They take no further place,
        because one handler runs the whole batch.
        """
        return -self._waiting[queue] % self.sizes[queue]

    def busy(self) -> int:
        """Return how many places run a handler. Places of jobs that wait for their batch to begin do not count."""
        return self.taken - self._shared - (self.kept - self._kept_for_batches)

    def full(self) -> bool:
        """Return whether the worker can take no further job: no place (room for a handler) is free, and the waiting
        jobs of each batch task fill the places that they share.
        """
        return super().full() and not any(map(self._room, self.sizes))

    def has_room(self, queue: str) -> bool:
        """Return whether another job of the queue can wait in a place (room for a handler) that the queue's waiting
        jobs already share.
        """
        return queue in self.sizes and self._room(queue) > 0

    def claims(
        self, group: QueueGroup, groups: QueueGroups, most: float
    ) -> list[tuple[WatchedQueue, int]]:
        """Return the claims to send now, as (queue, number of jobs) pairs. For a batch task, one free place counts as a
        whole batch of jobs.
        """
        places = {queue.name: n for queue, n in super().claims(group, groups, most)}
        found = []
        for name, queue in group.queues.items():
            n = places.get(name)
            if name in self.sizes and queue.promising:
                room = (n or 0) * self.sizes[name] + self._room(name)
                if (jobs := int(min(room, CLAIM_MAX, most))) > 0:
                    n = jobs
            if n is not None:
                found.append((queue, n))
                most -= n
        return found

    def only_waits(self) -> bool:
        """Return whether jobs that wait for their batch to begin take all places (room for handlers) and fill them, and
        no claim is under way.
        """
        return self.taken == self._shared and not self.kept and self.full()

    # For the executor.

    def may_begin(self) -> bool:
        """Return whether another handler may begin: a place (room for one handler) is neither in use nor reserved for
        a claim. Places of jobs that wait for their batch to begin count as free.
        """
        return self.taken - self._shared < self.most

    def begin(self, queue: str, jobs: int) -> None:
        """Take a place for a handler that begins. It runs this number of jobs that have waited until now."""
        self.hold(queue, -jobs)
        self.taken += 1


class BatchHandlers(Handlers):
    """Starts the jobs that arrive in a worker that has batch tasks."""

    executor_type: ClassVar[type[Executor]] = BatchExecutor
    executor: BatchExecutor

    def __init__(
        self,
        app: App,
        lifetime: Lifetime,
        capacity: BatchCapacity,
        groups: QueueGroups,
        **others: Any,
    ) -> None:
        super().__init__(app, lifetime, capacity, groups, **others)
        self._places = capacity
        self.executor.places = capacity
        self.executor.on_begin = self._begin
        self._waiting: set[Running] = set()
        """The claims of jobs in queues of batch tasks, as long as their handlers have not begun."""
        self._prepared: list[Running] = []
        """The claims in ``_waiting`` that have just arrived."""
        self._on_over = lifetime.on_over
        lifetime.on_over = self._over

    def _over(self) -> None:
        """Handle the end of claiming. A retiring worker begins its incomplete batches; a stopping worker gives their
        jobs back.
        """
        self._on_over()
        if self._lifetime.retired and not self._lifetime.stops:
            self.executor.close_all()
        else:
            self.executor.give_back_all()

    def arrive(self, claim: Claim, since: float) -> None:
        """Accept a claimed job, and keep it until it can start. A job of a batch task's queue shares a place with the
        waiting jobs of this queue.
        """
        super().arrive(claim, since)
        if claim.queue in self._places.sizes:
            self._places.taken -= 1
            self._places.hold(claim.queue, 1)

    def begin_arrived(self) -> None:
        """Start all jobs that have arrived. Begin incomplete batches if no further job can arrive."""
        self.executor.linger_max = self.leases.interval
        super().begin_arrived()
        prepared, self._prepared = self._prepared, []
        # A batch may wait longer for a place than its handler may run.
        waiting = [running for running in prepared if running in self._waiting]
        self.leases.hold_all([(running.claim, None) for running in waiting])
        if self._places.only_waits():
            # No further job can arrive before a batch has ended.
            self.executor.close_all()

    def _begin(self, claims: Sequence[Running]) -> None:
        self._waiting.difference_update(claims)
        self.leases.hold_all([(running.claim, lease_end(running)) for running in claims])

    def _prepare(self, claim: Claim) -> Running | None:
        running = super()._prepare(claim)
        if claim.queue in self._places.sizes:
            if running is None:
                self._places.taken += 1
                self._places.hold(claim.queue, -1)
            else:
                self._waiting.add(running)
                self._prepared.append(running)
        return running

    def _give_back(self, late: Sequence[Claim]) -> None:
        super()._give_back(late)
        for claim in late:
            if claim.queue in self._places.sizes:
                self._places.taken += 1
                self._places.hold(claim.queue, -1)

    def _freed(self, running: Running) -> None:
        if running.claim.queue in self._places.sizes and not isinstance(running, BatchRun):
            if running in self._waiting:
                self._waiting.discard(running)
                self._places.taken += 1
                self._places.hold(running.claim.queue, -1)
            elif running.task.batch is not None:
                # The place is its batch's.
                self._places.taken += 1
        super()._freed(running)
