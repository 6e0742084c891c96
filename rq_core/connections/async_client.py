"""The asyncio client: the same plans as :class:`rq_core.connections.client.Client`, awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from rq_core.connections.open import open_async_wire
from rq_core.connections.wire import AsyncWire
from rq_core.errors import RqCoreError
from rq_core.model.job import NewJob
from rq_core.model.keys import DEFAULT_PREFIX, queue_keys
from rq_core.model.url import DEFAULT_URL
from rq_core.protocol.delivery import Delivery
from rq_core.protocol.enqueue import ENQUEUE_CHUNK, Accepted
from rq_core.protocol.one_step import in_one_step
from rq_core.protocol.operations import Operations
from rq_core.protocol.plan import Call, Patience, Plan, Send

T = TypeVar("T")

ENQUEUES_IN_FLIGHT: Final = 8
"""Enqueue calls of one client under way at once; jobs that come meanwhile join the next call."""


class AsyncClient:
    """A connection to a server's queues, for one event loop. See rq_core.connections.client.Client for the methods."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        prefix: str = DEFAULT_PREFIX,
        name: str | None = None,
        patience: Patience | None = None,
        wire: AsyncWire | None = None,
        calls: Operations | None = None,
    ) -> None:
        self.url = url
        self.calls = calls or Operations(
            Delivery(prefix=prefix, url=url, name=name, patience=patience)
        )
        self._wire = wire or open_async_wire(url, patience=patience)
        self._in_flight = 0
        self._waiting: list[tuple[NewJob, asyncio.Future[Accepted]]] = []
        self._under_way: set[str] = set()
        """Ids of jobs in enqueue calls that are not answered yet."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def one_slot(self) -> bool:
        """Whether it can wait for one queue at a time only, as in a cluster."""
        return self._wire.one_slot

    @property
    def prefix(self) -> str:
        """What its keys begin with."""
        return self.calls.delivery.prefix

    async def run(self, what: Plan[T] | Call[T]) -> T:
        """Drive a plan to its end, or carry out one call."""
        return await self._drive(self.calls.delivery.call(what) if isinstance(what, Call) else what)

    async def carry_out(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Carry out calls in one round trip, as Delivery.carry_out does: a value or an RqCoreError per call."""
        delivery = self.calls.delivery
        if len(calls) != 1:
            return await self._drive(delivery.carry_out(calls))
        # One call needs a plan only if its answer is not ``ok``.
        (call,) = calls
        begun = delivery.begin(call)
        try:
            replies = await self._wire.exchange((begun.command,))
            (reply,) = replies
            if type(reply) is list and reply[0] == "ok":
                return [call.parse(reply[1:])]
            rest = delivery.go_on(call, begun)
            next(rest)
            return [await self._drive(rest, replies)]
        finally:
            delivery.end(call.script, call.queue, begun)

    async def _drive(self, plan: Plan[T], reply: Any = None) -> T:
        """``reply``: to what the plan has asked for, if it has been begun."""
        while True:
            try:
                step = plan.send(reply)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            except RqCoreError as error:
                if self.prefix != DEFAULT_PREFIX:
                    error.name_prefix(self.prefix)
                raise
            try:
                if isinstance(step, Send):
                    reply = await self._wire.exchange(*step)
                else:
                    await asyncio.sleep(step.seconds)
                    reply = None
            except BaseException as error:
                # The plan may have something to tell with it, such as which jobs were accepted.
                with contextlib.suppress(type(error), StopIteration):
                    plan.throw(error)
                plan.close()
                raise

    async def close(self) -> None:
        """Wait for enqueues under way, then close all connections."""
        while self._tasks:
            tasks = tuple(self._tasks)
            await asyncio.gather(*tasks, return_exceptions=True)
            # Not left to their callbacks: from Python 3.12 on, waiting for what is done does not let those run.
            self._tasks.difference_update(tasks)
        await self._wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def enqueue_one(self, job: NewJob) -> Accepted:
        """Enqueue one job, together with others that are enqueued at the same time. Returns what became of this one.

        A few calls are under way at once; jobs that come meanwhile share the next. An error of a shared call is
        raised to each of its callers.
        """
        future: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, future))
        if self._in_flight < ENQUEUES_IN_FLIGHT:
            self._in_flight += 1
            task = asyncio.create_task(self._flush())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def _flush(self) -> None:
        try:
            while batch := self._next_batch():
                self._under_way.update(job.id for job, _ in batch)
                try:
                    accepted = await self.run(self.calls.enqueue.many([job for job, _ in batch]))
                except Exception as error:  # noqa: BLE001 - whatever it is, the callers must learn of it
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(error)
                else:
                    others = accepted.others()
                    for job, future in batch:
                        if not future.done():
                            future.set_result(others.get(job.id) or Accepted((job.id,)))
                finally:
                    self._under_way.difference_update(job.id for job, _ in batch)
        finally:
            self._in_flight -= 1

    def _next_batch(self) -> list[tuple[NewJob, asyncio.Future[Accepted]]]:
        """Take the next call's jobs, all of one queue; none: what waits is for the calls under way to take.

        An id is under way once: so each outcome is one job's, and the first to come is the one that is accepted.
        """
        queue: str | None = None
        batch: dict[str, tuple[NewJob, asyncio.Future[Accepted]]] = {}
        rest = []
        for place, each in enumerate(self._waiting):
            if len(batch) == ENQUEUE_CHUNK:
                # Looked at by each call, those that wait would take the square of their number.
                rest += self._waiting[place:]
                break
            job = each[0]
            if each[1].cancelled():
                continue  # Its caller has given it up.
            fits = queue in (None, job.queue)
            if fits and job.id not in batch and job.id not in self._under_way:
                queue = job.queue
                batch[job.id] = each
            else:
                rest.append(each)
        self._waiting = rest
        return list(batch.values())

    async def wait_wake(
        self,
        queues: Sequence[str],
        seconds: float,
        on_token: Callable[[str], None] = lambda _: None,
    ) -> str | None:
        """Take a wake token: the queue that had one, or None after ``seconds``. With ``one_slot`` it must be one queue.

        ``on_token`` is called with the queue a round of the loop before this returns it. Raises Unsent, Lost or
        ReplyError of rq_core.protocol.plan.
        """
        names = {queue_keys(queue, self.prefix)("wake"): queue for queue in queues}

        def hear(found: Any) -> None:
            if type(found) is list:
                on_token(names[found[0]])

        command = ["BLPOP", *names, max(seconds, 0.001)]
        found = await self._wire.block(command, seconds, hear)
        return names[found[0]] if found else None

    async def return_token(self, queue: str) -> None:
        """Put a wake token back that will not be used, unless there is one."""
        key = queue_keys(queue, self.prefix)("wake")
        # In one step: workers that stop together, and scripts, push as well.
        both = in_one_step([["RPUSH", key, "1"], ["LTRIM", key, 0, 0]])
        await self.run(self.calls.delivery.ask([both]))
