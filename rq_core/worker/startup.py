"""A worker meets its queues: what it needs of the server, and what the code declares of them.

Limits are declared in one history of Redis. In another one, which may have begun with nothing, they are declared again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rq_core.connections.async_client import AsyncClient
from rq_core.errors import LayoutMismatch, QueueDamaged, RqCoreError
from rq_core.model.keys import queue_keys
from rq_core.protocol import server_check
from rq_core.protocol.claims import Claimed
from rq_core.protocol.plan import Patience
from rq_core.worker.dead_hooks import death_watches
from rq_core.worker.queue_group import QueueGroups
from rq_core.worker.wakeups import FOREVER, LOOK_S_MAX, TROUBLE_PAUSE_S, WatchedQueue

if TYPE_CHECKING:
    from rq_core.app.app import App

log = logging.getLogger(__package__)


class Startup:
    """What a worker does before its first claim."""

    def __init__(self, app: App, client: AsyncClient, worker: str, groups: QueueGroups) -> None:
        self._app = app
        self._client = client
        self._worker = worker
        self._groups = groups

    async def begin(self, *, checked: bool) -> float:
        """Meet the queues, and declare what the code says of them. Returns the shortest lease, in seconds.

        ``checked``: the supervisor has looked whether the server is suitable. Raises RqCoreError if the app or the
        server cannot be used.
        """
        queues, client = self._groups.queues.values(), self._client
        self._app.check()
        client.calls.delivery.get_ready("turn", "claim", "complete", "fail", "rollback", "extend")
        # Without a server at the start the operator has to hear of it; later, the worker waits until an outage is over.
        client.calls.delivery.asking.patience = Patience()
        if not checked:
            server_check.warn(await client.run(server_check.check(client.calls.delivery.asking)))
        declared = self._app.queues
        for queue in queues:
            if queue.name not in declared:
                queue.absent = not await self._is_there(queue)
                queue.look = not queue.absent
                self._tell_undeclared(queue, declared)
        await self._meet_usable([queue for queue in queues if not queue.absent])
        client.calls.delivery.asking.patience = Patience(unsent=FOREVER, unknown=FOREVER)
        return min(queue.lease for queue in queues)

    async def _meet(self, *queues: WatchedQueue) -> None:
        """Meet queues, which makes those that are not there, and tell the server what the code says of them."""
        handshake = self._client.calls.delivery.handshake
        for queue in queues:
            queue.epoch = (await self._client.run(handshake(queue.name))).epoch
        await self._declare(*[queue.name for queue in queues])
        await self._begin_telling(*[queue.name for queue in queues])
        for queue in queues:
            queue.lease = (await self._client.run(handshake(queue.name))).lease_ms / 1000

    async def _meet_usable(self, queues: Sequence[WatchedQueue]) -> None:
        """Meet queues. One that is damaged is left alone for now: the others must not wait until it is mended.

        Raises QueueDamaged or LayoutMismatch if none can be used.
        """
        for queue in queues:
            try:
                await self._meet(queue)
            except (QueueDamaged, LayoutMismatch) as error:
                queue.absent, queue.look = True, False
                if all(each.absent for each in queues):
                    raise
                log.error(  # noqa: TRY400 - the traceback would say nothing more
                    "no jobs of queue %s are run until it is mended: %s",
                    *(queue.name, error),
                    extra={"worker": self._worker},
                )

    async def _is_there(self, queue: WatchedQueue) -> bool:
        """Whether the queue has been made. To look does not make it."""
        try:
            return await self._client.run(self._client.calls.reads.is_there(queue.name))
        except QueueDamaged:
            return True  # To meet it says what is wrong.

    def _tell_undeclared(self, queue: WatchedQueue, declared: Sequence[str]) -> None:
        known = ", ".join(declared) or "none"
        text = f"queue {queue.name}: the app declares no task of it (it declares tasks of: {known})"
        if queue.absent:
            text += (
                f". It is not there, and this worker does not make it: it looks every {LOOK_S_MAX:g} s whether a"
                " producer has made it"
            )
        log.warning("%s", text, extra={"worker": self._worker})

    async def await_absent(self) -> None:
        """Look now and then whether the queues that were left alone have been made, and work for them from then on."""
        while absent := [queue for queue in self._groups.queues.values() if queue.absent]:
            await asyncio.sleep(LOOK_S_MAX)
            for queue in absent:
                try:
                    if await self._is_there(queue):
                        await self._meet(queue)
                        queue.absent = False
                        log.info("queue %s: is there now", queue.name)
                except RqCoreError as error:
                    log.error("queue %s cannot be looked for: %s", queue.name, error)  # noqa: TRY400
            self._groups.look_at_all()

    async def _declare(self, *queues: str) -> None:
        """Tell the server what the code says of these queues."""
        declared = self._app.declaration(self._client.calls, *queues)
        for sentence in await self._client.run(declared):
            log.warning("%s", sentence, extra={"worker": self._worker})

    async def _begin_telling(self, *queues: str) -> None:
        """Note that hooks are told of deaths from now on."""
        for watch in death_watches(self._client, self._app.tasks, queues).values():
            await self._client.run(watch.begin())

    async def declare_anew(self, queue: WatchedQueue, claimed: Claimed, *, since: int) -> bool:
        """Declare the limits again: this claim was carried out in another history of Redis than that of ``since``,
        when it was sent. Another claim may have been under way with it, and have had them declared meanwhile.

        Returns True if that history began with nothing: then the jobs of this claim may be counted in no cap.
        Whether the limits were declared before they were claimed or after, by another worker, does not show.
        """
        meta = queue_keys(queue.name, self._app.prefix)("meta")
        try:
            ask = self._client.calls.delivery.ask([["HGET", meta, "whole_epoch"]], queue.name)
            (began,) = await self._client.run(ask)
            await self._declare(queue.name)
            await self._begin_telling(queue.name)
        except RqCoreError as error:
            # Its epoch stays the old one, so this is tried at the next claim.
            log.error("declaring the caps of queue %s failed: %s", queue.name, error)  # noqa: TRY400
            await asyncio.sleep(TROUBLE_PAUSE_S)
            return True
        began_anew = int(began or 0) > since
        queue.epoch = claimed.epoch or 0
        return began_anew and bool(self._app.declared.limits(queue.name))
