"""Whether a worker that works in a burst has anything left to do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from rq_core.app.task import Task
from rq_core.connections.async_client import AsyncClient
from rq_core.worker.dead_hooks import NEXT_MS_S, DeathWatch, death_watches
from rq_core.worker.handlers import Handlers
from rq_core.worker.queue_group import QueueGroups

log = logging.getLogger(__package__)


class Burst:
    """The end of a worker that stops when nothing is left."""

    def __init__(
        self,
        client: AsyncClient,
        worker: str,
        groups: QueueGroups,
        handlers: Handlers,
        tasks: Mapping[str, Task[Any, Any]],
    ) -> None:
        self._client = client
        self._worker = worker
        self._groups = groups
        self._handlers = handlers
        self._tasks = tasks
        self._deaths: dict[str, DeathWatch] | None = None
        """None: not looked yet."""
        self._asking = False
        """Whether a turn is finding out. The turns of all groups ask, and one answer is enough for all."""

    def active(self) -> bool:
        """Whether something runs, or is to be reported or looked at."""
        if self._handlers.executor.busy or self._handlers.arrived:
            return True
        if any(group.finished for group in self._groups.all):
            return True
        return any(queue.look or queue.asked for queue in self._groups.queues.values())

    async def over(self) -> bool:
        """Whether nothing runs or is due, and nothing that is ready may run now. Says what is left all the same."""
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
            # A paused or stopped queue gives out nothing, however much is ready; nor does a full scope.
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
                "jobs are left that may not run now: %s; `rq-core caps %s` says what they wait for",
                told,
                next(iter(left)),
                extra={"worker": self._worker, "left": left},
            )
        return True

    async def _tell_of_last_deaths(self) -> bool:
        """Tell hooks of what died and was not told yet. Returns whether their jobs are to be run now."""
        if self._deaths is None:
            self._deaths = death_watches(self._client, self._tasks, self._groups.queues)
        if not self._deaths:
            return False
        # A look at a queue that this worker does not make would make it.
        queues = self._groups.queues
        watches = [watch for name, watch in self._deaths.items() if not queues[name].absent]
        await asyncio.sleep(NEXT_MS_S)
        before = sum(watch.told for watch in watches)
        for watch in watches:
            while await self._client.run(watch.look()):
                pass
        return sum(watch.told for watch in watches) > before
