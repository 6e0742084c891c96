"""How a worker learns that there may be something to claim: wake tokens, what is due, and a look now and then.

It sets ``look`` of a queue and wakes the worker; claiming is the worker's. A worker that has no room takes no tokens:
they are for others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rq_core.connections.async_client import AsyncClient
from rq_core.errors import RqCoreError
from rq_core.protocol.calls.claims import Claimed
from rq_core.protocol.engine.plan import Lost, ReplyError, Unsent

log = logging.getLogger(__name__)

FOREVER: Final = float("inf")
LOOK_S_MAX: Final = 5.0
"""Seconds after which an idle worker looks at its queues though nothing woke it."""
BURST_LOOK_S: Final = 0.1
"""The same for a worker that ends when nothing is left."""
PAUSE_S: Final = 0.2
"""Seconds after a wait that failed."""
TROUBLE_PAUSE_S: Final = 1.0


@dataclass(slots=True)
class WatchedQueue:
    """One queue as a worker knows it."""

    name: str
    epoch: int = 0
    """The epoch of Redis in which the limits of the code were declared."""
    lease: float = 30.0
    look: bool = True
    """Whether a claim may find something."""
    asked: int = 0
    """Claims under way."""
    more: bool = False
    """Whether the last claim left jobs that could have been claimed."""
    looked: float = 0.0
    due: float = FOREVER
    """When the next scheduled job is due, on the monotonic clock."""
    timer: asyncio.TimerHandle | None = None
    """Looks at the queue when it is."""
    empty: bool = False
    """Whether the last claim found nothing left."""
    absent: bool = False
    """Whether it is left alone: the app does not declare it, and it has not been made yet."""

    def ask(self) -> None:
        """Note that a claim is about to be sent."""
        self.look = False
        self.asked += 1
        self.looked = time.monotonic()

    @property
    def promising(self) -> bool:
        """Whether a claim may find something: also beside one that is under way, if that cannot take all there is."""
        return self.look or (self.more and self.asked > 0)

    def overdue(self, now: float) -> bool:
        """Whether even a full worker should do what is due in the queue."""
        return now - self.looked >= min(self.lease / 3, LOOK_S_MAX)


class Watcher:
    """Waits for tokens of these queues while the worker has room and nothing better to do."""

    def __init__(
        self,
        client: AsyncClient,
        queues: Mapping[str, WatchedQueue],
        *,
        burst: bool,
        full: Callable[[], bool],
        interval: Callable[[], float],
        on_look: Callable[[], None],
    ) -> None:
        """``full``: whether the worker has no room. ``interval``: seconds between two heartbeats, the longest wait.
        ``on_look`` is called, on the loop, when there is a queue to look at."""
        self._client = client
        self._queues = queues
        self._burst = burst
        self._full = full
        self._interval = interval
        self._on_look = on_look
        self._stopping = False
        self._looked = False
        """Whether the last token was used."""
        self._room = asyncio.Event()
        self._quiet = asyncio.Event()

    async def run(self) -> None:
        """Watch until stopped."""
        while not self._stopping:
            try:
                if all(queue.look or queue.asked for queue in self._queues.values()):
                    # All queues are being claimed from anyway.
                    await self._wait_for(self._quiet)
                elif self._full():
                    await self._wait_for(self._room)
                elif all(queue.absent for queue in self._queues.values()):
                    await self._wait_for(self._quiet)
                else:
                    await self._wait_for_token()
            except (Lost, Unsent, ReplyError, RqCoreError) as error:
                log.warning("waiting for jobs failed, trying again: %s", error)
                await asyncio.sleep(PAUSE_S)
                self.look_at(self._queues.values())
            except Exception:
                # A worker whose watcher has died is alive and deaf.
                log.exception("waiting for jobs failed, trying again")
                await asyncio.sleep(TROUBLE_PAUSE_S)
                self.look_at(self._queues.values())

    def stop(self) -> None:
        """Take no more tokens; one that comes all the same goes back."""
        self._stopping = True
        self._room.set()
        self._quiet.set()

    def close(self) -> None:
        """Take back what was to wake the worker later."""
        for queue in self._queues.values():
            if queue.timer is not None:
                queue.timer.cancel()

    def freed(self) -> None:
        """The worker may have room again."""
        self._room.set()

    def look_at(self, queues: Iterable[WatchedQueue]) -> None:
        """Let the worker claim from these."""
        for queue in queues:
            queue.look = not queue.absent
        self._on_look()

    def look_again(self, queue: WatchedQueue) -> None:
        """A claim failed."""
        queue.asked -= 1
        self.look_at([queue])

    def note(self, queue: WatchedQueue, claimed: Claimed) -> None:
        """Learn from the answer to a claim whether, and when, another may find something."""
        now = time.monotonic()
        due = FOREVER
        if claimed.next_due_ms is not None:
            due = now + max(1, claimed.next_due_ms - claimed.now_ms) / 1000
        # A look that another answer asked for stays: the claim of that answer may have come later.
        queue.due = due if queue.timer is None else min(queue.due, due)
        self._wake_when_due(queue, now)
        queue.more = claimed.more
        queue.empty = not claimed.more and queue.due > now
        queue.asked -= 1
        # If a look was asked for meanwhile, the claim may have come before the job.
        queue.look = queue.look or not queue.empty
        if queue.empty:
            # A round of the loop later: what was claimed is begun before there is another wait.
            asyncio.get_running_loop().call_soon(self._quiet.set)

    def _wake_when_due(self, queue: WatchedQueue, now: float) -> None:
        """Look again when the next scheduled job is due.

        Not by the wait for tokens: that began before this was known.
        """
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        if queue.due < FOREVER:
            loop = asyncio.get_running_loop()
            queue.timer = loop.call_later(queue.due - now, self._look_at_due, queue)

    def _look_at_due(self, queue: WatchedQueue) -> None:
        queue.timer = None
        self.look_at([queue])

    async def _wait_for(self, event: asyncio.Event) -> None:
        """Wait, but not so long that what is due in the queue is left undone."""
        event.clear()
        try:
            async with asyncio.timeout(min(LOOK_S_MAX, self._interval())):
                await event.wait()
        except TimeoutError:
            self.look_at(self._queues.values())

    async def _wait_for_token(self) -> None:
        seconds = min(LOOK_S_MAX, self._interval())
        if self._burst:
            seconds = min(seconds, BURST_LOOK_S)
        self._looked = False
        watched = [queue.name for queue in self._queues.values() if not queue.absent]
        name = await self._client.wait_wake(watched, seconds, self._use_token)
        if self._looked:
            return
        if name is None:
            self.look_at(self._queues.values())
        else:
            await self._client.return_token(name)
        # What that brought is asked for before there is another wait.
        await asyncio.sleep(0)

    def _use_token(self, name: str) -> None:
        """There is a token: have its queue looked at, unless it is for others."""
        if not (self._full() or self._stopping):
            self._looked = True
            self.look_at([self._queues[name]])
