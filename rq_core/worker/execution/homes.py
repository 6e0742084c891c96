"""The objects through which the steps of durable jobs use their worker: one for ``async def`` handlers, one for ``def``
handlers. They save and load entries, and park the job."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

from rq_core.app.durable.step_calls import StepCalls
from rq_core.app.handlers.context import JobContext
from rq_core.protocol.calls.boxes import SaveAnswer, Saving
from rq_core.protocol.engine.plan import Plan
from rq_core.protocol.operations import Operations
from rq_core.protocol.reads.box_reads import Box
from rq_core.signals import Parking
from rq_core.worker.execution.running import Running

LEASE_PAUSE_S: Final = 0.05
"""Seconds between two checks whether the lease is in force again, while the worker's heartbeat is late."""
LINGER_S: Final = 0.2
"""Seconds until a waiting job is parked if its handler still runs: only an asyncio task that the handler has started
waits. If a step begins or ends meanwhile, the time starts again."""
T = TypeVar("T")
End = Callable[[Running, Parking], None]


def _nothing() -> None:
    """Do nothing. This function ends a step in a thread, where no record of running steps is needed."""


class Saves(Protocol):
    """The methods of a saver that the steps of one handler use."""

    @property
    def lease_holds(self) -> Callable[[str], bool]:
        """A function that returns, for a queue, whether the worker's leases are in force by the worker's clock."""
        ...

    async def ask(self, plan: Callable[[Operations], Plan[T]], /) -> T:
        """Carry out a call to a queue, and return its result."""
        ...

    async def load(self, context: JobContext, first: int = 1, /) -> Box | None:
        """Return the saved entries of the job from number ``first`` on; None if the claim is not in force."""
        ...

    async def save(self, context: JobContext, records: Sequence[Saving], /) -> SaveAnswer:
        """Save entries: steps, waits and sleeps. Return index in ``records`` → NotSaved for a record that Redis
        refused, or the entry of a wait or sleep that is over. All other records are left out: they are saved."""
        ...


class _Home:
    """The object through which a handler's steps use the worker: to save and load entries, and park the job."""

    is_async: bool
    can_park = False

    def __init__(
        self, saver: Saves, context: JobContext, audit_result: str, calls: StepCalls
    ) -> None:
        self._saver = saver
        self._context = context
        self.calls = calls
        self.audit_result = audit_result

    def _is_uncertain(self) -> bool:
        """Return whether the lease may have expired although the handler was not asked to stop."""
        return not self._saver.lease_holds(self._context.queue) and not self._context.cancelled


class LoopHome(_Home):
    """The object through which an async handler's steps use the worker: to save and load entries, and park the job."""

    is_async = True

    def __init__(
        self,
        saver: Saves,
        context: JobContext,
        audit_result: str,
        calls: StepCalls,
        running: Running | None = None,
        end: End | None = None,
    ) -> None:
        super().__init__(saver, context, audit_result, calls)
        self._running = running
        self._end = end
        self.can_park = end is not None
        self._lock = asyncio.Lock()
        self._unfinished: set[asyncio.Future[None]] = set()
        self._waits: dict[int, asyncio.Future[None]] = {}
        """The futures of waits and sleeps that are not over, by the entry's number."""
        self._is_awaited = False
        """True if the handler's own asyncio task waits, and not only an asyncio task that the handler has started."""
        self._calls = 0
        """Number of calls to Redis that the handler's steps wait for."""
        self._timer: asyncio.TimerHandle | None = None

    def began(self) -> Callable[[], None]:
        """Record that a step has begun: the job does not park meanwhile. Return the function that records its end."""
        step: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unfinished.add(step)

        def ended() -> None:
            self._unfinished.discard(step)
            step.set_result(None)
            self._consider()

        self._consider()
        return ended

    async def let_end(self) -> None:
        """Allow no further step to begin, and wait for those that still run, perhaps after their handler has failed."""
        if self._context.steps is not None:
            self._context.steps.close()
        if self._timer is not None:
            self._timer.cancel()
        for pending in self._waits.values():
            pending.cancel()
        if self._unfinished:
            await asyncio.wait(self._unfinished)

    async def park(self, entry: int) -> None:
        """Park the job as soon as none of its steps runs. Parking cancels this call, so it never returns."""
        pending = self._waits[entry] = asyncio.get_running_loop().create_future()
        assert self._running is not None
        is_own = asyncio.current_task() is self._running.handler
        self._is_awaited = self._is_awaited or is_own
        self._consider()
        try:
            await pending
        finally:
            del self._waits[entry]

    def _consider(self) -> None:
        """Park the job if it waits, no step runs and no call is under way.

        The job parks at once if the handler's own asyncio task waits. Otherwise it parks after LINGER_S, because
        another asyncio task of the handler may begin a step meanwhile.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waits or self._unfinished or self._calls or self._context.cancelled:
            return
        if self._is_awaited:
            self._park()
        else:
            self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._park)

    def _park(self) -> None:
        self._timer = None
        if self._end is not None and self._running is not None:
            self._end(self._running, Parking(tuple(sorted(self._waits))))

    async def lease(self) -> None:
        """Wait until the lease is in force by the worker's clock, or until the handler must stop."""
        while self._is_uncertain():  # noqa: ASYNC110 - the heartbeat is on another thread
            await asyncio.sleep(LEASE_PAUSE_S)

    async def load(self, first: int = 1) -> Box | None:
        """Return the saved entries of the job from number ``first`` on; None if the claim is not in force."""
        with self._calling():
            return await self._saver.load(self._context, first)

    async def ask(self, plan: Callable[[Operations], Plan[T]]) -> T:
        """Carry out a call to a queue, and return its result."""
        with self._calling():
            return await self._saver.ask(plan)

    async def save(self, records: Sequence[Saving]) -> SaveAnswer:
        """Save entries: steps, waits and sleeps. Return index in ``records`` → NotSaved for a record that Redis
        refused, or the entry of a wait or sleep that is over. All other records are left out: they are saved."""
        with self._calling():
            return await self._saver.save(self._context, records)

    async def finish(self, saving: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine that saves entries. It goes on even if the handler is cancelled meanwhile: a step that has
        happened must be saved, and this run must record that it was."""
        return await asyncio.shield(asyncio.ensure_future(saving))

    async def beside(self, saving: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine that saves entries, and let the handler go on meanwhile. The coroutine keeps its error."""
        task = asyncio.ensure_future(saving)
        self._unfinished.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._unfinished.discard(task)
            if not task.cancelled():
                task.exception()  # or asyncio would log the error a second time
            self._consider()

        task.add_done_callback(ended)

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Prevent the job from parking while a call to Redis is under way."""
        self._calls += 1
        self._consider()
        try:
            yield
        finally:
            self._calls -= 1
            self._consider()

    def turn(self) -> asyncio.Lock:
        """Return the lock that lets only one save of the job run at a time."""
        return self._lock


class ThreadHome(_Home):
    """The object through which the steps of a handler in a thread use the worker. Each call blocks the thread."""

    is_async = False

    def __init__(
        self,
        saver: Saves,
        context: JobContext,
        audit_result: str,
        calls: StepCalls,
        loop: asyncio.AbstractEventLoop | None = None,
        end: Callable[[Parking], None] | None = None,
    ) -> None:
        super().__init__(saver, context, audit_result, calls)
        self._end = end
        self.can_park = end is not None
        self._loop = loop
        self._lock = threading.RLock()

    def began(self) -> Callable[[], None]:
        """Do nothing: a handler in a thread cannot end before its step does."""
        return _nothing

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def lease(self) -> None:
        """Wait until the lease is in force by the worker's clock, or until the handler must stop."""
        while self._is_uncertain():
            self._context.wait_cancelled(LEASE_PAUSE_S)

    async def load(self, first: int = 1) -> Box | None:
        """Return the saved entries of the job from number ``first`` on; None if the claim is not in force."""
        return self._wait(self._saver.load(self._context, first))

    async def ask(self, plan: Callable[[Operations], Plan[T]]) -> T:
        """Carry out a call to a queue, and return its result."""
        return self._wait(self._saver.ask(plan))

    async def park(self, entry: int) -> None:
        """Raise Parking in the handler's thread, so that the worker parks the job."""
        why = Parking((entry,))
        self._context.tell(why)
        # Before the thread reports its end.
        assert self._loop is not None
        assert self._end is not None
        self._loop.call_soon_threadsafe(self._end, why)
        raise why

    async def save(self, records: Sequence[Saving]) -> SaveAnswer:
        """Save entries: steps, waits and sleeps. Return index in ``records`` → NotSaved for a record that Redis
        refused, or the entry of a wait or sleep that is over. All other records are left out: they are saved."""
        return self._wait(self._saver.save(self._context, records))

    async def finish(self, saving: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine that saves entries. Nothing cancels a thread."""
        return await saving

    async def beside(self, saving: Coroutine[Any, Any, None]) -> None:
        """Await a coroutine that saves entries: the handler's thread does one thing at a time."""
        await saving

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the lock that lets only one save of the job run at a time."""
        with self._lock:
            yield
