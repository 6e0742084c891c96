"""The worker itself: creates its parts, runs its turns (round trips that claim and settle), and ends its parts in
order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rq_core.app.task import Task
from rq_core.connections.async_client import AsyncClient
from rq_core.connections.client import Client
from rq_core.connections.open import open_async_transport, open_transport
from rq_core.connections.transport import WORKER_SOCKET_TIMEOUT_S, AsyncTransport
from rq_core.errors import RqCoreError
from rq_core.model.ids import boot_id
from rq_core.model.keys import check_name
from rq_core.protocol.engine.plan import Patience
from rq_core.worker.batch_places import BatchCapacity, BatchHandlers, batch_sizes
from rq_core.worker.capacity import Capacity
from rq_core.worker.claim_counters import FlowTable
from rq_core.worker.dead_hooks import NEXT_MS_S, DeathWatch, death_watches, tell_of_deaths
from rq_core.worker.held_jobs import Handlers
from rq_core.worker.lifetime import Lifetime, end_tasks
from rq_core.worker.liveness.heartbeat import BEATS_IN_LEASE
from rq_core.worker.liveness.lease_table import LeaseTable
from rq_core.worker.liveness.loop_lag import LoopWatch
from rq_core.worker.options import WorkerOptions
from rq_core.worker.queue_group import QueueGroup, QueueGroups
from rq_core.worker.shutdown import Shutdown
from rq_core.worker.startup import Startup
from rq_core.worker.ticker import Ticker
from rq_core.worker.turns import Turns
from rq_core.worker.wakeups import TROUBLE_PAUSE_S

if TYPE_CHECKING:
    from rq_core.app.app import App


log = logging.getLogger(__package__)


class Worker:
    """Claims and runs jobs of an app's tasks until it is asked to stop.

    ``await worker.run()`` returns when the worker has stopped. ``worker.stop()`` asks the worker to stop; a second call
    ends the grace period.
    """

    def __init__(
        self,
        app: App,
        options: WorkerOptions | None = None,
        *,
        name: str | None = None,
        on_claim: Callable[[], None] = lambda: None,
        lease_table: LeaseTable | None = None,
        flow: FlowTable | None = None,
        transport: AsyncTransport | None = None,
    ) -> None:
        """``on_claim`` is called whenever Redis has answered a claim.

        A supervisor passes ``lease_table`` and ``flow``: the worker's leases and its counters, in memory that both can
        read. ``transport`` replaces the worker's own connections; a test uses it to watch or delay calls.
        """
        self.app = app
        self.options = (options or WorkerOptions()).serving(app.queues)
        self.name = check_name("worker", name or boot_id("w"))
        self.clean = True
        """True if no handler was running when the worker had ended. This is set even if ``run`` raised an error."""
        self._supervised = lease_table is not None
        self._client = AsyncClient(
            app.redis_url,
            prefix=app.prefix,
            name=self.name,
            transport=transport
            or open_async_transport(app.redis_url, answer_within=WORKER_SOCKET_TIMEOUT_S),
        )
        self._lease_client = Client(
            app.redis_url,
            prefix=app.prefix,
            name=f"{self.name}.leases",
            patience=Patience(unsent=1.0, unknown=1.0),
            transport=open_transport(app.redis_url, answer_within=WORKER_SOCKET_TIMEOUT_S),
        )
        self._lifetime = Lifetime(self.name, self.options)
        self.stats = self._lifetime.stats
        sizes = batch_sizes(app)
        self._capacity = BatchCapacity(self.options, sizes) if sizes else Capacity(self.options)
        self._groups = QueueGroups(
            self._client,
            self.options,
            full=self._capacity.full,
            interval=lambda: self._handlers.leases.interval,
        )
        self._lifetime.on_over = self._groups.stop
        # Workers without batch tasks have no part that knows of batches.
        make_handlers: Callable[..., Handlers] = BatchHandlers if sizes else Handlers
        self._handlers = make_handlers(
            app,
            self._lifetime,
            self._capacity,
            self._groups,
            client=self._lease_client,
            saving=self._client,
            table=lease_table,
        )
        self._startup = Startup(app, self._client, self.name, self._groups)
        self._ticker = Ticker(app, self._client, self.name)
        flow = flow or FlowTable()
        self._watch = LoopWatch(flow)
        self._turns = Turns(
            self._client,
            self._lifetime,
            self._capacity,
            self._groups,
            self._handlers,
            self._startup,
            self._ticker,
            on_claim=on_claim,
            flow=flow,
        )
        self._burst = Burst(
            self._client, self.name, self._groups, self._handlers, self._ticker, app.tasks
        )
        self._shutdown = Shutdown(
            self._client, self._lifetime, self._groups, self._handlers, self._turns
        )

    def stop(self) -> None:
        """Stop claiming, and let jobs finish during the grace period. A second call ends the grace period at once."""
        self._lifetime.stop()

    def retire(self, why: str) -> None:
        """Stop claiming, and end once all running jobs have finished, however long that takes."""
        self._lifetime.retire(why)

    @property
    def asked(self) -> bool:
        """Return whether the worker was asked to stop."""
        return self._lifetime.stops > 0

    @property
    def retired(self) -> bool:
        """Return whether the worker ends by itself, because it has reached its limit of jobs or memory. A new worker
        should replace it.
        """
        return self._lifetime.retired

    async def run(self) -> bool:
        """Work until asked to stop. With ``burst``, work until no job is left that may run.

        Return False if handlers are still running; the process should then end at once. Raises RqCoreError if the
        server cannot be used. If that happens after the start, running jobs have the grace period first.
        """
        if not await self._met():
            return True
        self._handlers.start()
        self._watch.start()
        lifetime, groups = self._lifetime, self._groups.all
        watching = [asyncio.create_task(group.watcher.run()) for group in groups]
        at_once = range(self._capacity.turns)
        work = [asyncio.create_task(self._work_on(group)) for group in groups for _ in at_once]
        telling = [
            asyncio.create_task(tell_of_deaths(self._client, self.app.tasks, group, lifetime.over))
            for group in groups
        ]
        telling.append(asyncio.create_task(self._startup.await_absent()))
        telling.append(asyncio.create_task(self._startup.declare_hourly(self._ticker)))
        over = self._turns.over = asyncio.create_task(lifetime.over.wait())
        if self.options.burst and not self._groups.present:
            lifetime.end()
        try:
            await asyncio.wait({*work, over}, return_when=asyncio.FIRST_COMPLETED)
            lifetime.end()
            # Running jobs may take hours to end, and the worker is not expected to claim meanwhile.
            self._watch.stop()
            # A claim under way may still bring jobs; but one that waits for a server that is away must not delay the
            # end.
            armed = [group.armed for group in groups if group.armed is not None]
            await lifetime.let_end(*work, *armed)
        finally:
            lifetime.end()
            self._watch.stop()
            await end_tasks(*watching, *work, *telling, over)
            await self._ticker.close()
            self.clean = await self._wind_up()
        for done in work:
            if not done.cancelled():
                done.result()
        if lifetime.failure is not None:
            raise lifetime.failure
        return self.clean

    async def _met(self) -> bool:
        """Make the handshake with the queues, and return True. If the worker is asked to stop first, close everything
        and return False.

        So an operator can end a worker that waits for a silent server, and sees no error.
        """
        startup = asyncio.create_task(self._startup.begin(checked=self._supervised))
        over = asyncio.create_task(self._lifetime.over.wait())
        await asyncio.wait({startup, over}, return_when=asyncio.FIRST_COMPLETED)
        asked = self._lifetime.over.is_set()
        await end_tasks(over, *([startup] if asked else []))
        if not asked and startup.exception() is None:
            self._handlers.leases.interval = startup.result() / BEATS_IN_LEASE
            log.info(
                "worker started",
                extra={
                    "worker": self.name,
                    "queues": ",".join(self._groups.queues),
                    "concurrency": self.options.concurrency,
                },
            )
            return True
        await self._close()
        if not asked:
            startup.result()
        return False

    async def _work_on(self, group: QueueGroup) -> None:
        while not self._lifetime.over.is_set():
            try:
                await self._turns.turn(group)
                over = self._lifetime.over.is_set()
                if self.options.burst and not over:
                    await self._turns.child_ends.finish()
                    if await self._burst.over():
                        self._lifetime.end()
            except RqCoreError as error:
                self._lifetime.give_up(error)
            except Exception:
                # An unforeseen error must not end the worker; at worst, the leases of its jobs expire.
                log.exception("a turn failed, trying again", extra={"worker": self.name})
                await asyncio.sleep(TROUBLE_PAUSE_S)

    async def _wind_up(self) -> bool:
        """Let jobs finish, give back unfinished jobs, and send the last settlements. Return whether no handler is
        running."""
        await self._shutdown.let_finish()
        await self._shutdown.give_back()
        for group in self._groups.all:
            group.watcher.close()
        self._handlers.leases.stop()
        clean = await self._close()
        log.info(
            "worker stopped",
            extra={
                "worker": self.name,
                "claimed": self.stats.claimed,
                "completed": self.stats.completed,
                "failed": self.stats.failed,
                "cancelled": self.stats.cancelled,
                "parked": self.stats.parked,
                "rolled_back": self.stats.rolled_back,
            },
        )
        return clean

    async def _close(self) -> bool:
        """Close connections, threads and processes. Return whether no handler is running."""
        await self._handlers.executor.leave()
        await self._turns.child_ends.finish()
        self._lease_client.close()
        await self._client.close()
        return self._handlers.executor.close()


# Finds out whether a worker in burst mode has work left.


class Burst:
    """Finds out whether a worker in burst mode may end. In burst mode, a worker ends when no job is left that may
    run.
    """

    def __init__(
        self,
        client: AsyncClient,
        worker: str,
        groups: QueueGroups,
        handlers: Handlers,
        ticker: Ticker,
        tasks: Mapping[str, Task[Any, Any]],
    ) -> None:
        self._client = client
        self._worker = worker
        self._groups = groups
        self._handlers = handlers
        self._ticker = ticker
        self._tasks = tasks
        self._deaths: dict[str, DeathWatch] | None = None
        """The watches that enqueue hooks for dead jobs, by queue; None before the first check."""
        self._asking = False
        """True while a turn finds out whether the worker may end. The turns of all groups need to know this, and one
        answer is enough for all."""

    def active(self) -> bool:
        """Return whether a job runs, a settlement waits to be sent, or the worker should claim from a queue."""
        if self._handlers.busy or self._ticker.busy:
            return True
        if any(group.finished for group in self._groups.all):
            return True
        return any(queue.look or queue.asked for queue in self._groups.queues.values())

    async def over(self) -> bool:
        """Return whether no job is running or due, and no ready job may run now.

        Log the number of jobs that are left because they may not run now.
        """
        if self._asking or self.active():
            return False
        self._asking = True
        try:
            return await self._nothing_left()
        finally:
            self._asking = False

    async def _nothing_left(self) -> bool:
        left: dict[str, int] = {}
        for name, queue in self._groups.queues.items():
            counts = await self._client.run(self._client.calls.reads.counts(name))
            # A paused queue, or a queue with a cap of 0, gives out no jobs, regardless of how many are ready; nor does
            # a full scope.
            ready = sum(counts.ready.values()) + counts.open_lanes
            if counts.running or (ready and not counts.paused and counts.cap != 0):
                return False
            if queue.due <= time.monotonic():
                return False
            if jobs := sum(counts.ready.values()) + counts.waiting:
                left[name] = jobs
        if await self._tell_of_last_deaths() or self.active():
            return False
        if left:
            told = ", ".join(f"{jobs:,} in {name}" for name, jobs in left.items())
            log.warning(
                "jobs are left that may not run now: %s; `rq-core caps %s` shows the scopes that they wait for",
                told,
                next(iter(left)),
                extra={"worker": self._worker, "left": left},
            )
        return True

    async def _tell_of_last_deaths(self) -> bool:
        """Check for dead jobs a last time, and enqueue their hooks' jobs. Return whether a job had died, because a
        hook's job may then have to run.
        """
        if self._deaths is None:
            self._deaths = death_watches(self._client, self._tasks, self._groups.queues)
        if not self._deaths:
            return False
        # A check of a queue that this worker does not create would create it.
        queues = self._groups.queues
        watches = [watch for name, watch in self._deaths.items() if not queues[name].absent]
        await asyncio.sleep(NEXT_MS_S)
        before = sum(watch.told for watch in watches)
        for watch in watches:
            while await self._client.run(watch.look()):
                pass
        return sum(watch.told for watch in watches) > before
