"""Sends the progress of running jobs, and the chunks of their streams, to Redis.

A handler stores its progress and its chunks of text in a Showing object, and goes on. Usually one call per queue sends
the new progress and chunks of all jobs of the queue: GATHER_S after a chunk, or SHOW_S after the last call if there is
only progress. Only the last progress of a job is sent. Before the worker settles a claim, it sends the progress and the
chunks that are left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from rq_core.app.handlers.context import JobContext
from rq_core.app.handlers.showing import NotSent, Showing
from rq_core.errors import RqCoreError
from rq_core.model.job import Claim
from rq_core.protocol.calls.shows import Show, show_jobs
from rq_core.protocol.engine.plan import Call

log = logging.getLogger(__name__)

SHOW_S: Final = 0.5
"""Seconds between two calls that send the progress of jobs."""
GATHER_S: Final = 0.1
"""Seconds for which chunks of streams are gathered before a call sends them."""
LAST_S: Final = 2.0
"""Maximum seconds for which a job's settlement waits until the last progress and chunks of the job are sent."""
AGAIN_S: Final = 1.0
"""Maximum seconds after a failed call until the progress and the chunks of this call are sent again."""
RECORDS_MAX: Final = 1_000
"""Maximum number of records in a call."""
BYTES_MAX: Final = 1024 * 1024
"""Number of characters of chunks after which a call takes no further record."""

_Key = tuple[str, str, str]


class _Shown(NamedTuple):
    """A claim whose job has progress or chunks of its stream to send."""

    context: JobContext
    showing: Showing


class ShowingClient(Protocol):
    """The part of a client that sends calls."""

    async def carry_out(self, calls: Sequence[Call[Any]], /) -> list[Any]:
        """Carry out calls in one round trip."""
        ...


class Shows:
    """Sends the progress of one worker's jobs, and the chunks of their streams, to Redis."""

    def __init__(self, client: ShowingClient, worker: str) -> None:
        self._client = client
        self._worker = worker
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._new: dict[_Key, _Shown] = {}
        """The claims with something to send."""
        self._under_way: Collection[_Key] = ()
        """The claims whose progress or chunks are in the call under way."""
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = math.inf
        """Time at which the timer is due, in seconds of the loop's clock. The time is stored here, because a timer of
        uvloop that is due at once does not know its time."""
        self._sent_at = -math.inf
        """Time at which the last call was sent, in seconds of the monotonic clock."""
        self._sending: asyncio.Lock | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_warned = False

    def begin(self, context: JobContext) -> Showing:
        """Return the object in which a handler stores its progress and the chunks of its stream."""
        return Showing(lambda showing: self._told(context, showing))

    def attach(self) -> None:
        """Store the event loop on which the worker runs. Call this on that loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.get_ident()
            self._sending = asyncio.Lock()

    def _told(self, context: JobContext, showing: Showing) -> None:
        """Record that a claim has progress or chunks to send, and send them soon. Any thread may call this."""
        assert self._loop is not None
        if threading.get_ident() == self._thread:
            self._note(context, showing)
        else:
            with contextlib.suppress(RuntimeError):  # The loop is closed: the worker has ended.
                self._loop.call_soon_threadsafe(self._note, context, showing)

    def _note(self, context: JobContext, showing: Showing) -> None:
        self._new[context.queue, context.id, context.fence] = _Shown(context, showing)
        # Chunks are sent after GATHER_S, the progress alone SHOW_S after the last call.
        since = time.monotonic() - self._sent_at
        self._set_timer(GATHER_S if showing.has_chunks else max(0.0, SHOW_S - since))

    def _set_timer(self, seconds: float) -> None:
        """Send new progress and chunks after at most this number of seconds."""
        assert self._loop is not None
        when = self._loop.time() + seconds
        if self._timer is not None:
            if self._due_at <= when:
                return
            self._timer.cancel()
        self._timer, self._due_at = self._loop.call_at(when, self._due), when

    def _due(self) -> None:
        self._timer = None
        task = asyncio.ensure_future(self._send_all())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_all(self) -> None:
        assert self._sending is not None
        async with self._sending:
            taken, self._new = self._new, {}
            await self._send(taken)

    @property
    def is_busy(self) -> bool:
        """Return whether progress or chunks wait to be sent, or a call is under way."""
        return bool(self._new) or (self._sending is not None and self._sending.locked())

    async def before(self, claims: Iterable[Claim]) -> None:
        """Send the last progress and chunks of these jobs, before their claims are settled. Waits at most LAST_S."""
        assert self._sending is not None
        keys = [(claim.queue, claim.id, claim.fence) for claim in claims]
        if not any(key in self._new or key in self._under_way for key in keys):
            return
        try:
            async with asyncio.timeout(LAST_S), self._sending:
                taken = {key: self._new.pop(key) for key in keys if key in self._new}
                await self._send(taken, is_last=True)
        except TimeoutError:
            log.warning("what jobs showed last could not be sent within %g s", LAST_S)

    async def _send(self, new: Mapping[_Key, _Shown], *, is_last: bool = False) -> None:
        found = [(each, each.showing.take()) for each in new.values()]
        by_queue: defaultdict[str, list[tuple[_Shown, NotSent]]] = defaultdict(list)
        for shown, taken in found:
            if not taken.is_empty:
                by_queue[shown.context.queue].append((shown, taken))
        if not by_queue:
            return
        self._sent_at = time.monotonic()
        calls = [
            (queue, group, show_jobs(queue, self._worker, records))
            for queue, group in by_queue.items()
            for records in _parts(group)
        ]
        self._under_way = new.keys()
        try:
            answers = await self._client.carry_out([call for _, _, call in calls])
        except RqCoreError as error:
            answers = [error] * len(calls)
        finally:
            self._under_way = ()
        failed: dict[str, RqCoreError] = {}
        for (queue, group, _), answer in zip(calls, answers, strict=True):
            if isinstance(answer, RqCoreError):
                failed[queue] = answer
            else:
                _note_starts(group, answer)
        for queue, why in failed.items():
            self._not_sent(queue, why, () if is_last else by_queue[queue])

    def _not_sent(
        self, queue: str, error: RqCoreError, group: Iterable[tuple[_Shown, NotSent]]
    ) -> None:
        """Log the first failure of a call. Send the progress and the chunks of the claims in ``group`` again within
        AGAIN_S.
        """
        if not self._has_warned:
            self._has_warned = True
            log.warning("what jobs of queue %s show was not sent: %s", queue, error)
        for shown, taken in group:
            shown.showing.put_back(taken)
            context = shown.context
            self._new[context.queue, context.id, context.fence] = shown
            self._set_timer(AGAIN_S)


def _note_starts(group: Iterable[tuple[_Shown, NotSent]], answer: Mapping[str, str]) -> None:
    """Store for each claim, from Redis' answer, the number of the last chunk that earlier claims of the job sent."""
    for shown, _ in group:
        start = answer.get(shown.context.id, "")
        if start.isdecimal():
            shown.showing.start = int(start)


def _parts(group: Iterable[tuple[_Shown, NotSent]]) -> Iterator[list[Show]]:
    """Yield the records of a queue's jobs in lists, one list for each call."""
    part: list[Show] = []
    size = 0
    for (context, showing), taken in group:
        each: list[tuple[str, int, str]] = [("chunk", *chunk) for chunk in taken.chunks]
        if taken.said is not None:
            each.append(("says", *taken.said))
        for kind, number, text in each:
            if len(part) == RECORDS_MAX or size > BYTES_MAX:
                yield part
                part, size = [], 0
            part.append(
                Show(context.id, context.fence, context.claim, showing.start, kind, number, text)  # type: ignore[arg-type]
            )
            size += len(text)
    if part:
        yield part
