"""Ends a worker: lets jobs finish, gives unfinished jobs back, and sends the last settlements."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from rq_core.connections.async_client import AsyncClient
from rq_core.errors import RqCoreError
from rq_core.model.lib.text import counted
from rq_core.model.table.reasons import Reason
from rq_core.signals import WorkerStopping
from rq_core.worker.held_jobs import Handlers
from rq_core.worker.lifetime import Lifetime, end_tasks
from rq_core.worker.queue_group import QueueGroup, QueueGroups
from rq_core.worker.turns import Turns
from rq_core.worker.wakeups import TROUBLE_PAUSE_S

log = logging.getLogger(__package__)

STOP_WAIT_S: Final = 1.0
"""Maximum seconds that a stopping worker waits after it has asked its handlers to stop. In this time async handlers
end, and threads close the dependencies of their handlers."""
SAVE_WAIT_S: Final = 4.0
"""Maximum seconds in which a stopping worker saves again the steps of durable jobs that Redis has lost. After this
time, the worker gives these jobs back, and their next runs repeat steps."""
REPORT_WAIT_S: Final = 5.0
"""Maximum seconds in which a stopping worker sends its last settlements. A claim that is not settled in this time ends
with its lease."""


class Shutdown:
    """Ends a worker that claims no more."""

    def __init__(
        self,
        client: AsyncClient,
        lifetime: Lifetime,
        groups: QueueGroups,
        handlers: Handlers,
        turns: Turns,
    ) -> None:
        self._client = client
        self._lifetime = lifetime
        self._groups = groups
        self._handlers = handlers
        self._turns = turns

    async def let_finish(self) -> None:
        """Let jobs finish, and send their settlements, until the grace period is over.

        If the worker retires, wait without a limit.
        """
        lifetime = self._lifetime
        flushing = asyncio.create_task(self._flush_all())
        returning: list[asyncio.Task[None]] = []
        if self._handlers.busy:
            # The jobs may take hours, and without the token, idle workers sleep for up to 5 s.
            returning = [
                asyncio.create_task(self._return_tokens(each)) for each in self._groups.all
            ]
        if lifetime.retired:
            began = asyncio.create_task(lifetime.grace_began.wait())
            await asyncio.wait({flushing, began}, return_when=asyncio.FIRST_COMPLETED)
            await end_tasks(began)
        if (unsettled := self._handlers.executor.unsettled) and lifetime.stops < 2:
            log.info(
                "stopping: %s %.3g s to finish",
                counted(len(unsettled), "job has", "jobs have"),
                lifetime.grace_left(),
                extra={"worker": lifetime.worker},
            )
        await lifetime.let_end(flushing)
        await end_tasks(flushing, *returning)

    async def give_back(self) -> None:
        """Stop the handlers that still run, give their jobs back, and send all settlements that are left.

        If Redis has lost saved steps of a durable job, the worker first saves them again.
        """
        executor, lost = self._handlers.executor, self._handlers.lost_entries
        for running in tuple(executor.running.values()):
            executor.end(running, WorkerStopping())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_WAIT_S):
                while any(each.can_stop for each in executor.running.values()):
                    self._groups.news.clear()
                    await self._groups.news.wait()
        for running in executor.unsettled:
            # Threads, and async handlers that did not end on cancellation.
            running.settled = True
            self._groups.settle(running.settlement("rollback", 0, Reason.SHUTDOWN))
        saving = asyncio.get_running_loop().call_later(SAVE_WAIT_S, lost.give_back)
        await asyncio.gather(*map(self._report_last, self._groups.all))
        saving.cancel()
        lost.give_back()

    async def _flush_all(self) -> None:
        await asyncio.gather(*map(self._flush, self._groups.all))

    async def _flush(self, group: QueueGroup) -> None:
        """Send settlements until all running jobs are settled."""
        news, handlers = self._groups.news, self._handlers
        while handlers.busy or group.finished:
            news.clear()
            if not group.finished:
                # The news may be of another group, or need no report: a job is due, or a thread is free.
                await news.wait()
                continue
            try:
                await self._turns.send(group, claims=[])
            except RqCoreError as error:
                # The error may be repaired before the grace period is over, for example by a worker that may load
                # scripts.
                self._lifetime.give_up(error)
                await asyncio.sleep(TROUBLE_PAUSE_S)
            except Exception:
                # Raised further, the error would end the grace period of all running jobs.
                log.exception(
                    "a report failed, trying again", extra={"worker": self._lifetime.worker}
                )
                await asyncio.sleep(TROUBLE_PAUSE_S)

    async def _report_last(self, group: QueueGroup) -> None:
        try:
            async with asyncio.timeout(REPORT_WAIT_S):
                while group.finished or self._handlers.lost_entries.saves_for(group.queues):
                    if group.finished:
                        await self._turns.send(group, claims=[])
                    else:
                        self._groups.news.clear()
                        await self._groups.news.wait()
                await self._put_tokens(group)
        except (TimeoutError, RqCoreError) as error:
            why = str(error) or "no answer"
            if why == str(self._lifetime.failure):
                why = "that has not changed"
            log.error(  # noqa: TRY400 - the traceback would say nothing more
                "could not report %s: %s; jobs that are not reported run again when their leases expire",
                counted(len(group.finished), "finished job"),
                why,
                extra={"worker": self._lifetime.worker},
            )

    async def _return_tokens(self, group: QueueGroup) -> None:
        with contextlib.suppress(RqCoreError):  # The worker tries again at its end.
            await self._put_tokens(group)

    async def _put_tokens(self, group: QueueGroup) -> None:
        """Put a wake token into each queue. This worker may have taken a token that it will not use; another worker
        must get one in its place.
        """
        for queue in group.queues.values():
            if not queue.absent:
                await self._client.return_token(queue.name)
