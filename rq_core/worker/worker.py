"""The worker itself: puts its parts together, runs a turn after another for each line, and ends in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from rq_core.connections.async_client import AsyncClient
from rq_core.connections.client import Client
from rq_core.connections.wire import WORKER_SOCKET_TIMEOUT, open_async_wire, open_wire
from rq_core.errors import RqCoreError
from rq_core.model.ids import boot_id
from rq_core.model.keys import check_name
from rq_core.protocol.plan import Patience
from rq_core.worker.burst import Burst
from rq_core.worker.capacity import Places
from rq_core.worker.dead_hooks import tell_of_deaths
from rq_core.worker.handlers import Handlers
from rq_core.worker.lease_table import LeaseTable
from rq_core.worker.lifetime import Shift, end_tasks
from rq_core.worker.options import WorkerOptions
from rq_core.worker.queue_group import Line, Lines
from rq_core.worker.shutdown import Ending
from rq_core.worker.startup import Meeting
from rq_core.worker.turns import Turns
from rq_core.worker.wakeups import TROUBLE_PAUSE

if TYPE_CHECKING:
    from rq_core.app.app import App

log = logging.getLogger(__package__)


class Worker:
    """Claims and runs jobs of an app's tasks until it is asked to stop.

    ``await worker.run()`` returns when it has stopped; ``worker.stop()`` asks for it, a second call ends the grace.
    """

    def __init__(
        self,
        app: App,
        options: WorkerOptions | None = None,
        *,
        name: str | None = None,
        on_claim: Callable[[], None] = lambda: None,
        lease_table: LeaseTable | None = None,
    ) -> None:
        """``on_claim`` is called whenever Redis has answered a claim. ``lease_table`` is shared with a supervisor."""
        self.app = app
        self.options = options or WorkerOptions()
        self.name = check_name("worker", name or boot_id("w"))
        self.clean = True
        """Whether no handler went on when it had ended, also where ``run`` raised."""
        self._supervised = lease_table is not None
        self._client = AsyncClient(
            app.redis_url,
            prefix=app.prefix,
            name=self.name,
            wire=open_async_wire(app.redis_url, answer_within=WORKER_SOCKET_TIMEOUT),
        )
        self._lease_client = Client(
            app.redis_url,
            prefix=app.prefix,
            name=f"{self.name}.leases",
            patience=Patience(unsent=1.0, unknown=1.0),
            wire=open_wire(app.redis_url, answer_within=WORKER_SOCKET_TIMEOUT),
        )
        self._shift = Shift(self.name, self.options)
        self.stats = self._shift.stats
        self._places = Places(self.options)
        self._lines = Lines(
            self._client,
            self.options,
            full=self._places.full,
            interval=lambda: self._handlers.leases.interval,
        )
        self._shift.on_over = self._lines.stop
        self._handlers = Handlers(
            app,
            self._shift,
            self._places,
            self._lines,
            client=self._lease_client,
            table=lease_table,
        )
        self._meeting = Meeting(app, self._client, self.name, self._lines)
        self._turns = Turns(
            self._client,
            self._shift,
            self._places,
            self._lines,
            self._handlers,
            self._meeting,
            on_claim=on_claim,
        )
        self._burst = Burst(self._client, self.name, self._lines, self._handlers)
        self._ending = Ending(self._client, self._shift, self._lines, self._handlers, self._turns)

    def stop(self) -> None:
        """Claim no more; let jobs finish for the grace time. A second call ends the grace now."""
        self._shift.stop()

    def retire(self, why: str) -> None:
        """Claim no more and end when what runs has finished, however long that takes."""
        self._shift.retire(why)

    @property
    def asked(self) -> bool:
        """Whether somebody has asked it to stop."""
        return self._shift.stops > 0

    @property
    def retired(self) -> bool:
        """Whether it ends by itself, and another should take its place."""
        return self._shift.retired

    async def run(self) -> bool:
        """Work until asked to stop, or with ``burst`` until nothing is left.

        Returns False if handlers are still running: the process should then end at once. Raises RqCoreError if
        the server cannot be used: at the start, or later, when what ran has had its grace.
        """
        if not await self._met():
            return True
        self._handlers.start()
        shift, lines = self._shift, self._lines.all
        watching = [asyncio.create_task(line.watcher.run()) for line in lines]
        at_once = range(self._places.turns)
        work = [asyncio.create_task(self._work_on(line)) for line in lines for _ in at_once]
        telling = [
            asyncio.create_task(tell_of_deaths(self._client, self.app.tasks, line, shift.over))
            for line in lines
        ]
        over = asyncio.create_task(shift.over.wait())
        try:
            await asyncio.wait({*work, over}, return_when=asyncio.FIRST_COMPLETED)
            shift.end()
            # A turn under way may bring claims; but one that waits for a server that is away must not hold us up.
            await shift.let_end(*work)
        finally:
            shift.end()
            await end_tasks(*watching, *work, *telling, over)
            self.clean = await self._wind_up()
        for done in work:
            if not done.cancelled():
                done.result()
        if shift.failure is not None:
            raise shift.failure
        return self.clean

    async def _met(self) -> bool:
        """Meet the queues. False: asked to stop before that was done, and ready to go.

        Somebody who ends a worker whose server is away wants it to end, not to hear that the server is away.
        """
        meeting = asyncio.create_task(self._meeting.begin(checked=self._supervised))
        over = asyncio.create_task(self._shift.over.wait())
        await asyncio.wait({meeting, over}, return_when=asyncio.FIRST_COMPLETED)
        asked = self._shift.over.is_set()
        await end_tasks(over, *([meeting] if asked else []))
        if not asked and meeting.exception() is None:
            self._handlers.leases.interval = meeting.result() / 3
            log.info(
                "worker started",
                extra={
                    "worker": self.name,
                    "queues": ",".join(self._lines.queues),
                    "concurrency": self.options.concurrency,
                },
            )
            return True
        await self._close()
        if not asked:
            meeting.result()
        return False

    async def _work_on(self, line: Line) -> None:
        while not self._shift.over.is_set():
            try:
                await self._turns.turn(line)
                over = self._shift.over.is_set()
                if self.options.burst and not over and await self._burst.over():
                    self._shift.end()
            except RqCoreError as error:
                self._shift.give_up(error)
            except Exception:
                # What nobody foresaw must not end the worker; the leases of what it held expire at worst.
                log.exception("a turn failed, trying again", extra={"worker": self.name})
                await asyncio.sleep(TROUBLE_PAUSE)

    async def _wind_up(self) -> bool:
        """Let jobs finish, give back the rest, report everything. Returns whether no handler goes on."""
        await self._ending.let_finish()
        await self._ending.give_back()
        for line in self._lines.all:
            line.watcher.close()
        self._handlers.leases.stop()
        clean = await self._close()
        log.info(
            "worker stopped",
            extra={
                "worker": self.name,
                "claimed": self.stats.claimed,
                "completed": self.stats.completed,
                "failed": self.stats.failed,
                "rolled_back": self.stats.rolled_back,
            },
        )
        return clean

    async def _close(self) -> bool:
        """Close connections, threads and processes. Returns whether no handler goes on."""
        self._lease_client.close()
        await self._client.close()
        return self._handlers.executor.close()
