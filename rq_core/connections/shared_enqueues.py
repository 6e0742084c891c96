"""Joins jobs that are enqueued at the same time in one event loop into shared calls.

A cancelled caller gives up its job. If the shared call has not been written to a connection yet, the job is removed
from it. So a caller that tries again during an outage does not create a second job when the server returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rq_core.protocol.calls.enqueue import ENQUEUE_CHUNK, Accepted, Enqueue
from rq_core.protocol.engine.plan import Pause, Send, Unsent

if TYPE_CHECKING:
    from rq_core.model.job import NewJob
    from rq_core.protocol.engine.plan import Call

IN_FLIGHT: Final = 8
"""Maximum number of enqueue calls of one client that are under way at once. Jobs that arrive meanwhile join the next
call."""

CarryOut = Callable[[Send | Pause], Awaitable[Any]]
"""A function that carries out one step (commands or a pause) of a plan and returns the reply."""
Through = Callable[[Send | Pause, CarryOut], Awaitable[Any]]
"""A function that carries out one step of a plan, with the usual function as its second argument."""


class _GivenUp(Exception):
    """The error for a shared call whose callers were all cancelled."""


class _Waiting(NamedTuple):
    """A job, and the future of the caller that waits for its outcome."""

    job: NewJob
    future: asyncio.Future[Accepted]


class _Shared:
    """One enqueue call, and the jobs of the callers that share it."""

    def __init__(self, enqueue: Enqueue, each: list[_Waiting]) -> None:
        self._enqueue = enqueue
        self.each = each
        self._sent = False
        """True if the call may have been written to a connection."""
        self._sender: asyncio.Task[Any] | None = None
        """The task that is trying to send the call; None if no task is."""
        self._interrupted = False
        self.call = self._made()
        self._mark = self.call.meanwhile = self._note_sent

    def _made(self) -> Call[Accepted]:
        jobs = [waiting.job for waiting in self.each]
        return self._enqueue.chunk(jobs[0].queue, jobs)

    def _note_sent(self) -> None:
        self._sent = True

    def give_up(self, future: asyncio.Future[Accepted]) -> None:
        """Handle the cancellation of the caller that waits for ``future``. If the call is not sent yet, interrupt the
        attempt to send it. The call is then built again without the caller's job."""
        ours = any(waiting.future is future for waiting in self.each)
        if ours and self._sender is not None and not self._sent and not self._interrupted:
            self._interrupted = True
            self._sender.cancel()

    def _leave_out(self) -> None:
        """Remove the jobs of cancelled callers from the call. The client builds the command again before each attempt
        to send it."""
        left = [waiting for waiting in self.each if not waiting.future.cancelled()]
        if left and len(left) < len(self.each):
            self.each = left
            made, call = self._made(), self.call
            call.args, call.parse, call.each, call.ids = made.args, made.parse, made.each, made.ids

    async def carry_out(self, step: Send | Pause, by: CarryOut) -> Any:
        """Carry out a step of the call's plan with the function ``by``, and return the reply. Raises _GivenUp if all
        callers were cancelled before the call was sent."""
        if not self._sent and all(waiting.future.cancelled() for waiting in self.each):
            raise _GivenUp
        if not isinstance(step, Send) or step.meanwhile is not self._mark:
            reply = await by(step)
        else:
            reply = await self._send(step, by)
        if not self._sent:
            self._leave_out()
        return reply

    async def _send(self, step: Send, by: CarryOut) -> Any:
        self._sender = me = asyncio.current_task()
        assert me is not None
        unsent: list[Any] = [Unsent("there was no connection yet")] * len(step.commands)
        try:
            replies = await by(step)
        except asyncio.CancelledError:
            if not self._interrupted or me.cancelling() > 1:
                raise
            return unsent
        finally:
            self._sender = None
            if self._interrupted:
                # Also if a connection attempt that ended at the same time took the cancellation for its own.
                self._interrupted = False
                me.uncancel()
        if all(isinstance(reply, Unsent) for reply in replies):
            self._sent = False
        return replies


class SharedEnqueues:
    """Enqueues jobs of several callers, several jobs in one call."""

    def __init__(
        self, enqueue: Enqueue, run: Callable[[Call[Accepted], Through], Awaitable[Accepted]]
    ) -> None:
        """Start without jobs. ``run``: a function that carries out a call. For each step of the call's plan, it must
        use the function (``Through``) that it receives."""
        self._enqueue = enqueue
        self._run = run
        self._in_flight = 0
        self.waiting: list[_Waiting] = []
        self._under_way: dict[str, _Shared] = {}
        """Job id → the call that has the job and has not been answered yet."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def enqueue(self, job: NewJob) -> Accepted:
        """Enqueue one job in a shared call, and return its outcome."""
        future: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        self.waiting.append(_Waiting(job, future))
        if self._in_flight < IN_FLIGHT:
            self._in_flight += 1
            task = asyncio.create_task(self._flush())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            return await future
        except asyncio.CancelledError:
            shared = self._under_way.get(job.id)
            if shared is not None:
                shared.give_up(future)
            raise

    async def end(self) -> None:
        """Wait until no call is under way."""
        while self._tasks:
            tasks = tuple(self._tasks)
            await asyncio.gather(*tasks, return_exceptions=True)
            # Not left to the tasks' callbacks: from Python 3.12 on, waiting for a finished task does not let them run.
            self._tasks.difference_update(tasks)

    async def _flush(self) -> None:
        try:
            while batch := self.next_batch():
                ids: list[str] = []
                try:
                    # Inside the try block: an invalid job raises its error when it is read.
                    count = self._enqueue.fitting([job for job, _ in batch])
                    self.waiting[:0] = batch[count:]
                    del batch[count:]
                    ids = [waiting.job.id for waiting in batch]
                    shared = _Shared(self._enqueue, batch)
                    self._under_way.update(dict.fromkeys(ids, shared))
                    accepted = await self._run(shared.call, shared.carry_out)
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
                    for job_id in ids:
                        self._under_way.pop(job_id, None)
        finally:
            self._in_flight -= 1

    def next_batch(self) -> list[_Waiting]:
        """Remove from ``waiting`` the jobs of the next call, all of one queue, and return them.

        An empty result means that the jobs in ``waiting``, if any, must wait for a call under way: two jobs with the
        same id are never under way at once. So each outcome belongs to one job, and the first job with an id is
        accepted.
        """
        queue: str | None = None
        batch: dict[str, _Waiting] = {}
        rest = []
        for place, each in enumerate(self.waiting):
            if len(batch) == ENQUEUE_CHUNK:
                # If each call read all waiting jobs, the time would grow with the square of their number.
                rest += self.waiting[place:]
                break
            job = each[0]
            if each[1].cancelled():
                continue  # Its caller was cancelled.
            fits = queue in (None, job.queue)
            if fits and job.id not in batch and job.id not in self._under_way:
                queue = job.queue
                batch[job.id] = each
            else:
                rest.append(each)
        self.waiting = rest
        return list(batch.values())
