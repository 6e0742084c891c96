"""Saves the steps of durable jobs in Redis, for the handlers of one worker. Each queue has at most one call under way.

Steps that end while a call is under way are saved by the next call.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from rq_core.app.durable.step_calls import StepCalls
from rq_core.app.handlers.context import JobContext
from rq_core.app.handlers.handler_setup import ProcessValues
from rq_core.errors import AuditBacklogFull, QueueFull, RqCoreError, ServerError
from rq_core.model.headers import FORK_HEADER
from rq_core.protocol.calls.boxes import BATCH_MAX, SaveAnswer, Saving, save
from rq_core.protocol.engine.plan import Call, Plan
from rq_core.protocol.operations import Operations
from rq_core.protocol.reads.box_reads import Box
from rq_core.signals import Parking
from rq_core.worker.execution.forks import ForkSaver
from rq_core.worker.execution.parked_boxes import ParkedBoxes
from rq_core.worker.execution.running import Running

PAUSE_S: Final = 0.5
"""Seconds between two attempts to save steps that Redis could not store, while the lease is in force."""
LEASE_PAUSE_S: Final = 0.05
"""Seconds between two checks whether the lease is in force again, while the worker's heartbeat is late."""
BYTES_MAX: Final = 1024 * 1024
"""Maximum number of characters of step values in one call, unless a single save has more."""
LINGER_S: Final = 0.2
"""Seconds until a waiting job is parked if its handler still runs: only an asyncio task that the handler has started
waits. If a step begins or ends meanwhile, the time starts again."""
T = TypeVar("T")
End = Callable[[Running, Parking], None]


class SavingClient(Protocol):
    """The methods of a client that a Saver uses."""

    calls: Operations

    async def run(self, plan: Plan[T], /) -> T:
        """Carry out a plan, and return its result."""
        ...

    async def carry_out(self, calls: Sequence[Call[Any]], /) -> list[Any]:
        """Carry out calls in one round trip."""
        ...


class Saver:
    """Saves and loads the steps of one worker's jobs."""

    def __init__(
        self, client: SavingClient, worker: str, lease_holds: Callable[[str], bool]
    ) -> None:
        self.client = client
        self.worker = worker
        self.lease_holds = lease_holds
        self._parked = ParkedBoxes()
        self._waiting: dict[str, deque[tuple[Sequence[Saving], asyncio.Future[SaveAnswer]]]] = {}
        """Queue → the records that wait for the next call, for the queues with a call under way."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop of the worker, for handlers in threads."""

    def home(self, running: Running, end: End, resources: ProcessValues) -> LoopHome | ThreadHome:
        """Return the object through which the steps of a handler in this process use the worker.

        ``end`` asks the handler to stop and is called on the loop. In a test, the handler of a task with isolation may
        run in this process; its job cannot park.
        """
        task, context = running.task, running.context
        ends = None if task.isolation is not None else end
        kept = running.audit_result
        calls = StepCalls(task.app.surroundings, resources, is_async=task.is_async)
        saver = self._saver_for(running)
        if task.is_async:
            return LoopHome(saver, context, kept, calls, running, ends)
        assert self.loop is not None
        stop = None if ends is None else partial(ends, running)
        return ThreadHome(saver, context, kept, calls, self.loop, stop)

    def _saver_for(self, running: Running) -> Saves:
        """Return the saver for one claim. For a fork (copied durable job), it first copies the original's steps."""
        return self if FORK_HEADER not in running.context.headers else ForkSaver(self, running)

    async def answer(self, running: Running, call: str, args: Sequence[Any]) -> Any:
        """Answer an isolated handler's process, which has no connection to Redis. The answer can be written as JSON."""
        context = running.context
        if call == "lease":
            # The process of a handler that must stop may not know of that yet.
            return self.lease_holds(context.queue) and not context.cancelled
        if call == "load":
            return await self._saver_for(running).load(context, *args)
        records = [Saving(*each) for each in args]
        refused = await self.save(context, records)
        if not refused and any(record.what == "save" for record in records):
            context.base = context.failures
        return refused

    async def ask(self, plan: Callable[[Operations], Plan[T]]) -> T:
        """Carry out a call to a queue, and return its result. With such calls, durable jobs enqueue children, and read
        how their children ended."""
        return await self.client.run(plan(self.client.calls))

    async def load(self, context: JobContext, first: int = 1) -> Box | None:
        """Return the saved entries of a job from number ``first`` on; None if the job's claim is not in force."""
        parked = self._parked.take(context) if first == 1 else None
        if parked is not None:
            return parked
        plan = self.client.calls.reads.box(
            context.queue, context.id, context.fence, self.worker, first=first
        )
        return await self.client.run(plan)

    def keep_box(self, context: JobContext) -> None:
        """Keep the box (saved steps, waits, signals) of a job that this claim parks, to spare its next claim a read."""
        box = context.steps.box_now()
        if box is not None:
            self._parked.keep(context, box)

    async def save(self, context: JobContext, records: Sequence[Saving]) -> SaveAnswer:
        """Save entries of one job: steps, waits and sleeps. Returns index in ``records`` → NotSaved for a record that
        Redis refused, or the entry of a wait or sleep that is over. All other records are left out: they are saved.

        The steps have happened. So if Redis cannot store entries now, they are sent again while the lease is in force.
        """
        while True:
            try:
                if len(records) <= BATCH_MAX:
                    return await self._sent(context.queue, records)
                return await self._sent_in_parts(context.queue, records)
            except (AuditBacklogFull, QueueFull, ServerError):
                if context.cancelled or not self.lease_holds(context.queue):
                    raise
                await asyncio.sleep(PAUSE_S)

    async def _sent_in_parts(self, queue: str, records: Sequence[Saving]) -> SaveAnswer:
        """Save entries of one job in several calls, because one call may have at most BATCH_MAX entries."""
        found: SaveAnswer = {}
        for first in range(0, len(records), BATCH_MAX):
            refused = await self._sent(queue, records[first : first + BATCH_MAX])
            found |= {first + place: why for place, why in refused.items()}
        return found

    def _sent(self, queue: str, records: Sequence[Saving]) -> Awaitable[SaveAnswer]:
        answer: asyncio.Future[SaveAnswer] = asyncio.get_running_loop().create_future()
        if queue in self._waiting:
            self._waiting[queue].append((records, answer))
        else:
            self._waiting[queue] = deque([(records, answer)])
            task = asyncio.create_task(self._send_all(queue))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return answer

    async def _send_all(self, queue: str) -> None:
        waiting = self._waiting[queue]
        try:
            while waiting:
                await self._send(queue, _gathered(waiting))
        finally:
            del self._waiting[queue]

    async def _send(
        self,
        queue: str,
        taken: Sequence[tuple[Sequence[Saving], asyncio.Future[SaveAnswer]]],
    ) -> None:
        records = [each for group, _ in taken for each in group]
        call: Call[SaveAnswer] = save(queue, self.worker, records)
        (found,) = await self.client.carry_out([call])
        first = 0
        for group, answer in taken:
            if not answer.done():
                if isinstance(found, RqCoreError):
                    answer.set_exception(found)
                else:
                    upto = first + len(group)
                    answer.set_result(
                        {n - first: why for n, why in found.items() if first <= n < upto}
                    )
            first += len(group)


def _gathered(
    waiting: deque[tuple[Sequence[Saving], asyncio.Future[SaveAnswer]]],
) -> list[tuple[Sequence[Saving], asyncio.Future[SaveAnswer]]]:
    """Remove from ``waiting`` the saves that fit into one call, at least one. Return them."""
    taken = [waiting.popleft()]
    count = len(taken[0][0])
    size = sum(len(record.packed) for record in taken[0][0])
    while waiting:
        records = waiting[0][0]
        count += len(records)
        size += sum(len(record.packed) for record in records)
        if count > BATCH_MAX or size > BYTES_MAX:
            break
        taken.append(waiting.popleft())
    return taken


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

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the lock that lets only one save of the job run at a time."""
        with self._lock:
            yield
