"""Decides when to claim from a queue: when a wake token arrives, when a job is due, and after LOOK_S_MAX seconds at the
latest. A wake token is an entry that a script puts into Redis to wake one idle worker.

The watcher sets ``look`` of a queue and wakes the worker, which then claims. A worker that has no room for another job
takes no tokens, and leaves them to other workers.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from rq_core.connections.async_client import AsyncClient
from rq_core.errors import RqCoreError
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls.claims import Claimed
from rq_core.protocol.engine.plan import Lost, ReplyError, Unsent

log = logging.getLogger(__name__)

FOREVER: Final = float("inf")
LOOK_S_MAX: Final = 5.0
"""Maximum seconds between two claims of an idle worker, even if nothing woke it."""
BURST_LOOK_S: Final = 0.1
"""Maximum seconds between two claims of an idle worker in burst mode."""
FAR_S: Final = 0.0003
"""Seconds of a round trip above which a worker sends its claim together with its wait for a wake token. If the round
trip is shorter, sending both would not pay: the producer would wait until Redis has carried out the claim, and the job
would gain less."""
STILL_FAR_S: Final = 0.0002
"""Seconds of a round trip below which a worker stops sending its claims together with its waits for wake tokens."""
LATE_S: Final = 0.2
"""Seconds by which Redis may end a blocking wait too late: an idle server checks its waits ten times a second."""
PLAIN_SHARE: Final = 1 / 8
"""Share of the waits for wake tokens, chosen at random, that a worker makes without a claim if Redis is far. A claim
that leaves jobs wakes the next worker. If all workers sent their claims together with their waits, Redis would carry
out one claim after another, and serve no other client meanwhile. With this share, such a chain ends after eight workers
on average."""
PAUSE_S: Final = 0.2
"""Seconds of pause after a failed wait for a wake token."""
TROUBLE_PAUSE_S: Final = 1.0


class Arm(Protocol):
    """The type of Turns.arm."""

    def __call__(
        self, queue: WatchedQueue, seconds: float, *, far: bool
    ) -> asyncio.Task[None] | None: ...


@dataclass(slots=True)
class WatchedQueue:
    """The data by which a worker decides when to claim from one queue."""

    name: str
    epoch: int = 0
    """The epoch (history of the queue in Redis) in which this worker last declared the limits of the code."""
    lease: float = 30.0
    look: bool = True
    """True if the worker should claim from the queue."""
    asked: int = 0
    """Number of claims that Redis has not answered yet."""
    more: bool = False
    """True if jobs that could have been claimed were left after the last claim."""
    looked: float = 0.0
    due: float = FOREVER
    """Monotonic time at which the next scheduled job is due."""
    timer: asyncio.TimerHandle | None = None
    """The timer that lets the worker claim at ``due``."""
    empty: bool = False
    """True if no job that may run now was left after the last claim."""
    absent: bool = False
    """True if the worker does not serve the queue for now, because the queue cannot be used, or because it does not
    exist and the app does not declare it."""

    def ask(self) -> None:
        """Record that a claim is about to be sent."""
        self.look = False
        self.asked += 1
        self.looked = time.monotonic()

    @property
    def promising(self) -> bool:
        """Return whether another claim may find jobs in the queue.

        This is so if ``look`` is set. It is also so if the last claim left jobs and another claim is under way.
        """
        return self.look or (self.more and self.asked > 0)

    def overdue(self, now: float) -> bool:
        """Return whether even a worker without room for jobs should call the queue now, because its last call is long
        ago. A claim of 0 jobs ends expired leases and makes due jobs ready.
        """
        return now - self.looked >= min(self.lease / 3, LOOK_S_MAX)


class Watcher:
    """Waits for wake tokens: entries in Redis that wake one idle worker of a queue. While the worker has no room for
    jobs, or claims from all these queues anyway, it does not wait for tokens.
    """

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
        """``full`` returns whether the worker has no room for another job. ``interval`` returns the seconds between two
        heartbeats.

        No wait is longer than ``interval``. ``on_look`` is called on the event loop when the worker should claim from a
        queue.
        """
        self._client = client
        self._queues = queues
        self._burst = burst
        self._full = full
        self._interval = interval
        self._on_look = on_look
        self._stopping = False
        self._looked = False
        """True if the last wake token makes the worker claim. If False, a token that came must go back to Redis."""
        self._room = asyncio.Event()
        self._quiet = asyncio.Event()
        self.arm: Arm | None = None
        """A function that begins a wait for a wake token with a prepared (armed) claim (Turns.arm). None: each wait is
        without a claim."""
        self._wake = queue_keys(next(iter(queues)), client.prefix)("wake")
        """The Redis key of the wake tokens of the first queue."""
        self._is_far = False
        """True if the last measured round trip to Redis was long."""
        self._waited = True
        """False if the last wait for a wake token failed. The next wait is then without a claim. Otherwise a worker
        whose Redis user has no right to wait would claim in a loop."""

    async def run(self) -> None:
        """Wait for wake tokens again and again, until ``stop`` is called."""
        while not self._stopping:
            try:
                if all(queue.look or queue.asked for queue in self._queues.values()):
                    # The worker claims from all queues anyway.
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
                # A worker without its watcher would live but miss all tokens.
                log.exception("waiting for jobs failed, trying again")
                await asyncio.sleep(TROUBLE_PAUSE_S)
                self.look_at(self._queues.values())

    def stop(self) -> None:
        """Take no more wake tokens. A token that still arrives goes back to Redis, for another worker."""
        self._stopping = True
        self._room.set()
        self._quiet.set()

    def close(self) -> None:
        """Cancel the timers of scheduled jobs."""
        for queue in self._queues.values():
            if queue.timer is not None:
                queue.timer.cancel()

    def freed(self) -> None:
        """Report that the worker may have room for another job, so that the watcher waits for tokens again."""
        self._room.set()

    def look_at(self, queues: Iterable[WatchedQueue]) -> None:
        """Make the worker claim from these queues soon."""
        for queue in queues:
            queue.look = not queue.absent
        self._on_look()

    def look_again(self, queue: WatchedQueue) -> None:
        """Record that a claim failed, and make the worker claim again."""
        queue.asked -= 1
        self.look_at([queue])

    def note(self, queue: WatchedQueue, claimed: Claimed) -> None:
        """Decide from the answer to a claim whether and when to claim from the queue again."""
        now = time.monotonic()
        due = FOREVER
        if claimed.next_due_ms is not None:
            due = now + max(1, claimed.next_due_ms - claimed.now_ms) / 1000
        # A timer from another answer is kept: that answer's claim may have been carried out later.
        queue.due = due if queue.timer is None else min(queue.due, due)
        self._wake_when_due(queue, now)
        queue.more = claimed.more
        queue.empty = not claimed.more and queue.due > now
        queue.asked -= 1
        # If ``look`` was set meanwhile, this claim may have been carried out before the job arrived.
        queue.look = queue.look or not queue.empty
        if queue.empty:
            # One round of the loop later, so that the claimed jobs start before the next wait.
            asyncio.get_running_loop().call_soon(self._quiet.set)

    def _wake_when_due(self, queue: WatchedQueue, now: float) -> None:
        """Set a timer that makes the worker claim again when the next scheduled job is due.

        A wait for wake tokens may have begun before this time was known. The wait would not end at this time, so a
        timer is needed.
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
        """Wait for an event, but no longer than LOOK_S_MAX or the time between two heartbeats.

        If the time is over first, make the worker claim: a claim also ends expired leases and makes due jobs ready.
        """
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
        armed = self._armed(seconds) if self.arm is not None else None
        if armed is not None:
            self._waited = False
            await armed
            self._waited = True
            return
        self._looked = False
        watched = [queue.name for queue in self._queues.values() if not queue.absent]
        name = await self._client.wait_wake(watched, seconds, self._use_token)
        self._waited = True
        if self._looked:
            return
        if name is None:
            self.look_at(self._queues.values())
        else:
            await self._client.return_token(name)
        # Let the worker claim before the next wait.
        await asyncio.sleep(0)

    def _armed(self, seconds: float) -> asyncio.Task[None] | None:
        """Begin a wait for a wake token with a prepared (armed) claim. Return the wait's asyncio task; None: the worker
        should wait without a claim.
        """
        pool = self._client.pool_of(self._wake)
        if pool is None or not self._waited:
            return None
        self._is_far = pool.round_trip > (STILL_FAR_S if self._is_far else FAR_S)
        if self._is_far and random.random() < PLAIN_SHARE:  # noqa: S311 - no secret
            return None
        (queue,) = self._queues.values()
        if queue.due < time.monotonic() + seconds + LATE_S:
            # The timer lets the worker claim when the job is due. The server may end the wait too late for that.
            return None
        assert self.arm is not None
        return self.arm(queue, seconds, far=self._is_far)

    def _use_token(self, name: str) -> None:
        """Make the worker claim from the queue whose wake token has arrived, unless the worker has no room for jobs or
        stops.
        """
        if not (self._full() or self._stopping):
            self._looked = True
            self.look_at([self._queues[name]])
