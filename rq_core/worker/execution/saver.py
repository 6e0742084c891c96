"""Saves the steps of durable jobs in Redis, for the handlers of one worker. Each queue has at most one call under way.

Steps that end while a call is under way are saved by the next call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
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
from rq_core.worker.execution.forks import ForkSaver
from rq_core.worker.execution.homes import End, LoopHome, Saves, ThreadHome
from rq_core.worker.execution.parked_boxes import ParkedBoxes
from rq_core.worker.execution.running import Running

PAUSE_S: Final = 0.5
"""Seconds between two attempts to save steps that Redis could not store, while the lease is in force."""
BYTES_MAX: Final = 1024 * 1024
"""Maximum number of characters of step values in one call, unless a single save has more."""
T = TypeVar("T")


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
        """Answer an isolated handler's process, which has no connection to Redis. The answer has only types of JSON."""
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
