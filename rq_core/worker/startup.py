"""A worker meets its queues: what it needs of the server, and what the code declares of them.

Limits are declared in one history of Redis. In another one, which may have begun with nothing, they are declared again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from rq_core.connections.async_client import AsyncClient
from rq_core.errors import (
    LayoutMismatch,
    OutcomeUnknown,
    QueueDamaged,
    RqCoreError,
    ServerUnavailable,
)
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls.claims import Claimed
from rq_core.protocol.engine import server_check
from rq_core.protocol.engine.plan import Patience
from rq_core.worker.dead_hooks import death_watches
from rq_core.worker.queue_group import QueueGroups
from rq_core.worker.wakeups import FOREVER, LOOK_S_MAX, TROUBLE_PAUSE_S, WatchedQueue

if TYPE_CHECKING:
    from rq_core.app.app import App

log = logging.getLogger(__package__)

START_WAIT_S: Final = 6.0
"""How long a worker that starts waits for a shard of a cluster before it serves the queues of the others: longer than
it takes to find out that three nodes are silent which may know where the slots are."""


class Startup:
    """The start of a worker, up to its first claim."""

    def __init__(self, app: App, client: AsyncClient, worker: str, groups: QueueGroups) -> None:
        self._app = app
        self._client = client
        self._worker = worker
        self._groups = groups

    async def begin(self, *, checked: bool) -> float:
        """Meet the queues, and declare what the code says of them. Returns the shortest lease, in seconds.

        ``checked``: the supervisor has looked whether the server is suitable. Raises RqCoreError if the app or the
        server cannot be used. In a cluster it is enough that one shard answers.
        """
        queues, client = self._groups.queues.values(), self._client
        self._app.check()
        client.calls.delivery.get_ready("turn", "claim", "complete", "fail", "rollback", "extend")
        # Without a server at the start the operator has to hear of it; later, the worker waits until an outage is over.
        client.calls.delivery.asking.patience = Patience()
        if not checked and not client.one_slot:
            await self._check()
        await self._meet_usable(queues)
        if not checked and client.one_slot:
            await self._check(next((queue.name for queue in queues if not queue.absent), None))
        client.calls.delivery.asking.patience = Patience(unsent=FOREVER, unknown=FOREVER)
        return min(queue.lease for queue in queues)

    async def _check(self, queue: str | None = None) -> None:
        """Warn of what the server is; in a cluster, of what the shard of ``queue`` is."""
        asking = self._client.calls.delivery.asking
        server_check.warn(await self._client.run(server_check.remarks_on(asking, queue)))

    async def _meet_usable(self, queues: Iterable[WatchedQueue]) -> None:
        """Meet queues. One that is damaged, or whose shard does not answer, is left alone for now: the others must not
        wait for it.

        Raises what is wrong if none can be used.
        """
        for queue in queues:
            queue.absent, queue.look = True, False
            # One that is met later begins with leases that the heartbeat keeps.
            said = self._app.settings.get(queue.name, {})
            queue.lease = said.get("lease_ms", queue.lease * 1000) / 1000
        if self._client.one_slot:
            others = self._app.settings.keys() - self._groups.queues.keys()
            telling = asyncio.gather(*map(self._declare_other, others))
            errors = await asyncio.gather(*map(self._try_to_meet, queues))
            await telling
        else:
            errors = [await self._try_to_meet(queue) for queue in queues]
        found = [error for error in errors if error is not None]
        if found and all(queue.absent for queue in queues):
            raise found[0]
        for queue, error in zip(queues, errors, strict=True):
            if error is not None:
                says = (
                    "no jobs of queue %s are run until its shard answers; the other queues are served meanwhile: %s"
                    if isinstance(error, ServerUnavailable | OutcomeUnknown)
                    else "no jobs of queue %s are run until it is mended: %s"
                )
                log.error(says, queue.name, error, extra={"worker": self._worker})

    async def _try_to_meet(self, queue: WatchedQueue) -> RqCoreError | None:
        """Meet a queue, if the app declares it or it is there. Returns why it cannot be used for now; raises what
        concerns all queues."""
        declared, in_cluster = self._app.queues, self._client.one_slot
        try:
            async with asyncio.timeout(START_WAIT_S if in_cluster else None):
                there = queue.name in declared or await self._is_there(queue)
                if there:
                    await self._meet(queue)
        except (QueueDamaged, LayoutMismatch) as error:
            return error
        except (ServerUnavailable, OutcomeUnknown) as error:
            if not in_cluster:
                raise
            return error
        except TimeoutError:
            url, why = self._client.calls.delivery.asking.url, f"no answer for {START_WAIT_S:g} s"
            return ServerUnavailable(url=url, why=why)
        queue.absent, queue.look = not there, there
        if queue.name not in declared:
            self._tell_undeclared(queue, declared)
        return None

    async def _meet(self, queue: WatchedQueue) -> None:
        """Meet a queue, which makes it if it is not there, and tell the server what the code says of it."""
        handshake = self._client.calls.delivery.handshake
        queue.epoch = (await self._client.run(handshake(queue.name))).epoch
        await self._declare(queue.name)
        await self._begin_telling(queue.name)
        queue.lease = (await self._client.run(handshake(queue.name))).lease_ms / 1000

    async def _is_there(self, queue: WatchedQueue) -> bool:
        """Whether the queue has been made. To look does not make it."""
        try:
            return await self._client.run(self._client.calls.reads.is_there(queue.name))
        except QueueDamaged:
            return True  # The handshake says what is wrong.

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
        """Look now and then whether the queues that were left alone can be used, and work for them from then on."""
        absent = [queue for queue in self._groups.queues.values() if queue.absent]
        # Each by itself: a shard that is down must not keep the worker from queues of others.
        await asyncio.gather(*map(self._await, absent))

    async def _await(self, queue: WatchedQueue) -> None:
        declared = queue.name in self._app.queues
        while queue.absent:
            await asyncio.sleep(LOOK_S_MAX)
            try:
                if declared or await self._is_there(queue):
                    await self._meet(queue)
                    queue.absent = False
            except RqCoreError as error:
                log.error("queue %s cannot be looked for: %s", queue.name, error)  # noqa: TRY400
        log.info("queue %s: is there now", queue.name)
        self._groups.of[queue.name].watcher.look_at([queue])

    async def _declare(self, queue: str) -> None:
        """Tell the server what the code says of a queue. On one server, also what it says of those that other workers
        work for."""
        others = () if self._client.one_slot else self._app.settings
        queues = dict.fromkeys((*others, queue))
        declared = self._app.declaration(self._client.calls, *queues)
        for sentence in await self._client.run(declared):
            log.warning("%s", sentence, extra={"worker": self._worker})

    async def _declare_other(self, queue: str) -> None:
        """In a cluster, do so for a queue that other workers work for. They do it as well."""
        try:
            async with asyncio.timeout(START_WAIT_S):
                await self._declare(queue)
        except (TimeoutError, RqCoreError) as error:
            why = str(error) or f"no answer for {START_WAIT_S:g} s"
            log.warning("what the app declares of queue %s was not written: %s", queue, why)

    async def _begin_telling(self, *queues: str) -> None:
        """Set the marks from which on hooks are called for deaths."""
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
