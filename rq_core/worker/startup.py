"""A worker's first contact with its queues: checks the server, makes the handshake, and stores the limits and schedules
that the app's code declares.

A new epoch (history of the queue in Redis) may begin without the stored limits. So the worker declares its limits again
in each new epoch.
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
from rq_core.worker.ticker import DECLARE_S, Ticker
from rq_core.worker.wakeups import FOREVER, LOOK_S_MAX, TROUBLE_PAUSE_S, WatchedQueue

if TYPE_CHECKING:
    from rq_core.app.app import App

log = logging.getLogger(__package__)

START_WAIT_S: Final = 6.0
"""Seconds for which a starting worker waits for a shard of a cluster before it serves the queues of the other shards.
This is longer than it takes to ask three silent nodes for the map of cluster slots."""


class Startup:
    """Makes a worker's handshake with its queues, and stores the limits and schedules that the app's code declares.
    Both are repeated later if needed.
    """

    def __init__(self, app: App, client: AsyncClient, worker: str, groups: QueueGroups) -> None:
        self._app = app
        self._client = client
        self._worker = worker
        self._groups = groups

    async def begin(self, *, checked: bool) -> float:
        """Connect to the queues, and store the limits and schedules that the code declares. Return the shortest lease,
        in seconds.

        ``checked``: whether the supervisor has already checked the settings of the server. In a cluster it is enough
        that one shard answers. Raises RqCoreError if the app or the server cannot be used.
        """
        queues, client = self._groups.queues.values(), self._client
        self._app.check()
        client.calls.delivery.get_ready("turn", "claim", "complete", "fail", "rollback", "extend")
        # Without a server at the start, the operator must see an error; later, the worker waits until an outage is
        # over.
        client.calls.delivery.asking.patience = Patience()
        if not checked and not client.one_slot:
            await self._check()
        await self._meet_usable(queues)
        if not checked and client.one_slot:
            await self._check(next((queue.name for queue in queues if not queue.absent), None))
        client.calls.delivery.asking.patience = Patience(unsent=FOREVER, unknown=FOREVER)
        return min(queue.lease for queue in queues)

    async def _check(self, queue: str | None = None) -> None:
        """Warn of unsuitable settings of the server. In a cluster, check the shard that has ``queue``."""
        asking = self._client.calls.delivery.asking
        server_check.warn(await self._client.run(server_check.remarks_on(asking, queue)))

    async def _meet_usable(self, queues: Iterable[WatchedQueue]) -> None:
        """Make the handshake with each queue. Leave out a queue that is damaged or whose shard does not answer.

        The usable queues do not wait for a queue that is left out. Raises the first error if no queue can be used.
        """
        for queue in queues:
            queue.absent, queue.look = True, False
            # A queue that is served later starts with a lease for which the heartbeat is frequent enough.
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
                    else "no jobs of queue %s are run until it is repaired: %s"
                )
                log.error(says, queue.name, error, extra={"worker": self._worker})

    async def _try_to_meet(self, queue: WatchedQueue) -> RqCoreError | None:
        """Make the handshake with a queue, if the app declares the queue or the queue exists.

        Returns the error if only this queue cannot be used for now. Raises an error that concerns all queues.
        """
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
        """Make the handshake with a queue, and store the limits and schedules that the code declares. A missing queue
        is created.
        """
        handshake = self._client.calls.delivery.handshake
        queue.epoch = (await self._client.run(handshake(queue.name))).epoch
        await self._declare(queue.name)
        await self._begin_telling(queue.name)
        queue.lease = (await self._client.run(handshake(queue.name))).lease_ms / 1000

    async def _is_there(self, queue: WatchedQueue) -> bool:
        """Return whether the queue exists. Do not create it."""
        try:
            return await self._client.run(self._client.calls.reads.is_there(queue.name))
        except QueueDamaged:
            return True  # The handshake reports the damage.

    def _tell_undeclared(self, queue: WatchedQueue, declared: Sequence[str]) -> None:
        known = ", ".join(declared) or "none"
        text = f"queue {queue.name}: the app declares no task of it (it declares tasks of: {known})"
        if queue.absent:
            text += (
                ". The queue does not exist, and this worker does not create it: the worker checks every"
                f" {LOOK_S_MAX:g} s whether a producer has created it"
            )
        log.warning("%s", text, extra={"worker": self._worker})

    async def await_absent(self) -> None:
        """Check every LOOK_S_MAX seconds each queue that was left out. Serve the queue once it can be used."""
        absent = [queue for queue in self._groups.queues.values() if queue.absent]
        # Each queue separately: a shard that is down must not keep the worker from the other queues.
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
                log.error("queue %s cannot be checked: %s", queue.name, error)  # noqa: TRY400
        log.info("queue %s is served from now on", queue.name)
        self._groups.of[queue.name].watcher.look_at([queue])

    async def _declare(self, queue: str) -> None:
        """Store the limits and schedules that the code declares for a queue, and log warnings about them.

        On one server, also store those of queues that only other workers serve.
        """
        others = () if self._client.one_slot else self._app.settings
        queues = dict.fromkeys((*others, queue))
        declared = self._app.declaration(self._client.calls, *queues)
        for sentence in await self._client.run(declared):
            log.warning("%s", sentence, extra={"worker": self._worker})

    async def _declare_other(self, queue: str) -> None:
        """In a cluster, store the limits and schedules that the code declares for a queue that only other workers
        serve. An error is only logged.
        """
        try:
            async with asyncio.timeout(START_WAIT_S):
                await self._declare(queue)
        except (TimeoutError, RqCoreError) as error:
            why = str(error) or f"no answer for {START_WAIT_S:g} s"
            log.warning("what the app declares of queue %s was not written: %s", queue, why)

    async def declare_hourly(self, ticker: Ticker) -> None:
        """Declare the code's schedules again every hour, because a schedule that no worker declares stops.

        Also handle due schedules that no answer to a claim has reported.
        """
        while True:
            await asyncio.sleep(DECLARE_S)
            for queue in self._groups.queues.values():
                if queue.absent or queue.name not in self._app.schedules:
                    continue
                try:
                    await self._declare(queue.name)
                    ticker.note(queue.name)
                except RqCoreError as error:
                    log.error("declaring the schedules of queue %s failed: %s", queue.name, error)  # noqa: TRY400

    async def _begin_telling(self, *queues: str) -> None:
        """Set the mark of each queue that has none: the time from which on dead jobs get their hooks' jobs
        (:mod:`rq_core.worker.dead_hooks`).
        """
        for watch in death_watches(self._client, self._app.tasks, queues).values():
            await self._client.run(watch.begin())

    async def declare_anew(self, queue: WatchedQueue, claimed: Claimed, *, since: int) -> bool:
        """Declare the limits again, because Redis has carried out a claim in another epoch than ``since``. An epoch is
        one unbroken history of a queue in Redis; a new epoch may lack the limits.

        ``since`` is the epoch that the worker knew when it sent the claim. Return True if perhaps no cap counted the
        claim's jobs. This is so if the declaration failed. It is also so if the queue has limits and an epoch after
        ``since`` began without data, even if another claim or worker has already declared the limits again.
        """
        meta = queue_keys(queue.name, self._app.prefix)("meta")
        try:
            ask = self._client.calls.delivery.ask([["HGET", meta, "whole_epoch"]], queue.name)
            (began,) = await self._client.run(ask)
            await self._declare(queue.name)
            await self._begin_telling(queue.name)
        except RqCoreError as error:
            # The queue's epoch is not changed, so the next claim tries again.
            log.error("declaring the caps of queue %s failed: %s", queue.name, error)  # noqa: TRY400
            await asyncio.sleep(TROUBLE_PAUSE_S)
            return True
        began_anew = int(began or 0) > since
        queue.epoch = claimed.epoch or 0
        return began_anew and bool(self._app.declared.limits(queue.name))
