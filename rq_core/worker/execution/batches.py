"""Collects claimed jobs of batch tasks into batches, and calls the handler once for each batch.

Each member of a batch has a claim of its own. Each claim is cancelled, lost and settled separately.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from rq_core.app.batches.jobs import BatchContext, Job, results_of
from rq_core.app.handlers.handler_setup import now
from rq_core.app.handlers.redaction import describe_error, message_of, redacted, traceback_in
from rq_core.app.handlers.retry import RetryVerdict
from rq_core.errors import UsageError
from rq_core.model.lib.logs import warn_with_traceback
from rq_core.model.lib.text import counted
from rq_core.model.table.reasons import Reason
from rq_core.signals import HandlerSignal, LeaseLost, Parking, WorkerStopping
from rq_core.worker.execution.executor import Executor
from rq_core.worker.execution.running import Running
from rq_core.worker.execution.time_limits import start_task

log = logging.getLogger(__name__)

FAILED_CALLS_MAX: Final = 8
"""Number of failed calls in a row after which the members of a batch are not divided into halves any further. The cause
is then probably not a job but, for example, the database."""
_OF_ALL: Final = (HandlerSignal, UsageError)
"""Exceptions that concern all jobs of a call. Calling the handler again with half of the jobs would not help."""


class BatchPlaces(Protocol):
    """Decides whether a batch may begin. A place lets one handler run."""

    def may_begin(self) -> bool:
        """Return whether a place for a handler is free."""
        ...

    def begin(self, queue: str, jobs: int) -> None:
        """Take one place for a handler of this number of jobs from the queue."""
        ...


class Member:
    """One job of a batch."""

    __slots__ = ("batch", "error", "is_done", "job", "running")

    def __init__(self, running: Running) -> None:
        self.running = running
        self.job = Job(running.arguments.made, running.context)  # type: ignore[attr-defined]  # Fields
        self.batch: _Collected | BatchRun | None = None
        self.is_done = False
        """True if a call of the handler with this job has returned in time."""
        self.error: BaseException | None = None
        """The handler's exception that makes this job fail, set when its part of the batch is not halved any further.
        None: there is no exception, or it concerns the whole batch. Without halving, this is always None."""

    @property
    def is_open(self) -> bool:
        """Return whether a call of the handler may still include this job."""
        return self.running.ending is None and not self.is_done and self.job.failure is None


class _Collected:
    """A batch that collects jobs, or waits to begin."""

    __slots__ = ("key", "members", "timer")

    def __init__(self, key: tuple[str, str] | None) -> None:
        self.key = key
        """The task's name, and the value of the argument that the option ``per`` names: all members share both. None:
        no further job joins."""
        self.members: list[Member] = []
        self.timer: asyncio.TimerHandle | None = None


class BatchRun(Running):
    """A batch whose handler runs. The executor treats the batch like one claim; each member keeps its own claim."""

    __slots__ = ("members", "takes_place")

    def __init__(self, members: Sequence[Member], worker: str, *, takes_place: bool) -> None:
        first = members[0].running
        limits = [m.running.timeout for m in members if m.running.timeout is not None]
        context = BatchContext(
            [m.job for m in members],
            queue=first.claim.queue,
            task=first.task.name,
            worker=worker,
        )
        super().__init__(first.claim, context, first.task, {}, "", min(limits, default=None))
        self.members = members
        self.takes_place = takes_place
        """True if the batch takes a place for a handler. False if no batch task declares the queue: the batch then has
        one job, and this job has had a place since it arrived."""

    def facts(self) -> dict[str, Any]:
        """Return the fields of a log record about the batch."""
        return {
            "queue": self.context.queue,
            "task": self.context.task,
            "jobs": len(self.members),
            "ran_s": round(time.monotonic() - self.started, 3),
        }


class BatchExecutor(Executor):
    """Runs handlers, also those of batch tasks. The jobs of other tasks run as in Executor."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.places: BatchPlaces | None = None
        """Decides when a batch may begin; None: one batch runs at a time."""
        self._runs = 0
        """Number of batches whose handlers run."""
        self.linger_max = float("inf")
        """Maximum seconds that a batch waits for further jobs."""
        self.on_begin: Callable[[Sequence[Running]], None] | None = None
        """Called with the claims of a batch before its handler begins."""
        self.own_queues = frozenset(
            task.options.queue for task in self._tasks.values() if task.batch is not None
        )
        self._collected: dict[tuple[str, str], _Collected] = {}
        self._ready: deque[_Collected | Running] = deque()
        """The batches that wait for a place (room for one handler), and the jobs of other tasks that wait for a place
        in a batch task's queue."""
        self._members: dict[Running, Member] = {}

    # From a claim to a batch.

    def launch(self, running: Running) -> None:
        """Start a prepared handler, or put its job into a batch if its task is a batch task."""
        batch = running.task.batch
        if running.ending is not None or running.settled:
            super().launch(running)
        elif batch is None:
            if running.claim.queue in self.own_queues:
                self._ready.append(running)
                self.begin_ready()
            else:
                super().launch(running)
        else:
            member = self._members[running] = Member(running)
            if running.claim.losses or running.claim.queue not in self.own_queues:
                # A job that has lost a worker runs alone: if it is the reason, no other job is lost with it.
                self._join(_Collected(None), member, size=1, linger=0)
                return
            value = "" if batch.per is None else repr(running.arguments[batch.per])
            key = (running.task.name, value)
            collected = self._collected.get(key)
            if collected is None:
                collected = self._collected[key] = _Collected(key)
            self._join(collected, member, batch.size, batch.linger_s)

    def _join(self, collected: _Collected, member: Member, size: int, linger: float) -> None:
        member.batch = collected
        collected.members.append(member)
        if len(collected.members) >= size:
            self._close(collected)
        elif collected.timer is None:
            seconds = min(linger, self.linger_max)
            loop = asyncio.get_running_loop()
            collected.timer = loop.call_later(seconds, self._close, collected)

    def _close(self, collected: _Collected) -> None:
        """Close a batch to further jobs. The batch begins when the worker may start another handler."""
        self._forget(collected)
        self._ready.append(collected)
        self.begin_ready()

    def _forget(self, collected: _Collected) -> None:
        if collected.timer is not None:
            collected.timer.cancel()
        if collected.key is not None:
            del self._collected[collected.key]
            collected.key = None

    def close_all(self) -> None:
        """Close all batches that wait for further jobs. Each begins when the worker may start another handler."""
        for collected in tuple(self._collected.values()):
            self._close(collected)

    def give_back_all(self) -> None:
        """Give back all jobs whose handlers have not begun."""
        for member in tuple(self._members.values()):
            if isinstance(member.batch, _Collected):
                self.end(member.running, WorkerStopping())
        for waiting in tuple(self._ready):
            if isinstance(waiting, Running):
                self.end(waiting, WorkerStopping())

    def begin_ready(self) -> None:
        """Begin the batches and jobs that are ready, as long as the worker may start another handler."""
        while self._ready and (self.places.may_begin() if self.places else not self._runs):
            waiting = self._ready.popleft()
            if isinstance(waiting, Running):
                waiting.started = time.monotonic()
                self._note_begin([waiting])
                super().launch(waiting)
            else:
                self._begin(waiting)

    def _note_begin(self, claims: Sequence[Running], *, takes_place: bool = True) -> None:
        if takes_place and self.places is not None:
            self.places.begin(claims[0].claim.queue, len(claims))
        if self.on_begin is not None:
            self.on_begin(claims)

    def _begin(self, collected: _Collected) -> None:
        members = collected.members
        task, queue = members[0].running.task, members[0].running.claim.queue
        run = BatchRun(members, self._worker, takes_place=queue in self.own_queues)
        self._runs += 1
        surrounded = bool(task.steps or self._surroundings.arounds)
        call: Callable[..., Any] = task.function
        if surrounded:
            call = self._surroundings.wrap(task, run.context, self._resources)
        run.function = _work_of(run, call)
        for member in members:
            member.batch = run
            member.running.started = run.started
            if task.is_async or surrounded:
                member.running.function = run.function
        self._note_begin([member.running for member in members], takes_place=run.takes_place)
        if task.is_async:
            run.handler = start_task(self._run_async(run))
        else:
            self._launch_thread(run)

    def _launch_thread(self, running: Running) -> None:
        if not isinstance(running, BatchRun):
            super()._launch_thread(running)
            return
        self._begin_time(running)
        try:
            self._threads.submit(running)
        except RuntimeError as error:
            running.settled = True
            for member in running.members:
                member.running.settled = True
                self._refuse(member.running.claim, "rollback", Reason.NOT_STARTED, error)
            self._free(running)

    def _begin_time(self, running: Running) -> None:
        super()._begin_time(running)
        if isinstance(running, BatchRun) and running.timeout is not None:
            assert running.over is not None
            for member in running.members:
                member.running.context.limit(running.timeout, running.over)

    # The end of a member, or of a batch.

    def end(self, running: Running, why: HandlerSignal | Parking) -> None:
        """Ask a job's handler to stop. The handler of a batch stops only once all its members were asked to stop."""
        if running.ending is not None:
            return
        super().end(running, why)
        if running in self._ready:
            self._ready.remove(running)
            self._ended(running, why)
            super()._free(running)
            return
        member = self._members.get(running)
        batch = None if member is None else member.batch
        if isinstance(batch, _Collected):
            assert member is not None
            self._leave(batch, member)
            self._ended(running, why)
            self._free(running)
        elif batch is not None and all(m.running.ending is not None for m in batch.members):
            self.end(batch, why)

    def _leave(self, collected: _Collected, member: Member) -> None:
        collected.members.remove(member)
        if collected.members:
            return
        self._forget(collected)
        if collected in self._ready:
            self._ready.remove(collected)

    def _ended(self, running: Running, error: BaseException | None) -> None:
        if not isinstance(running, BatchRun):
            super()._ended(running, error)
            return
        if running.settled:
            return
        running.settled = True
        error = running.ending or error
        failed: dict[int, tuple[BaseException, list[Member]]] = {}
        for member in running.members:
            each = member.running
            each.ended = running.ended
            if isinstance(each.ending, LeaseLost):
                super()._ended(each, each.ending)
            elif member.is_done and member.job.failure is None:
                super()._ended(each, None)
            elif each.ending is not None or each.settled:
                super()._ended(each, each.ending)
            else:
                why = member.job.failure or member.error or error
                assert why is not None
                failed.setdefault(id(why), (why, []))[1].append(member)
        for why, members in failed.values():
            self._members_failed(running, why, members)

    def _members_failed(
        self, run: BatchRun, error: BaseException, members: Sequence[Member]
    ) -> None:
        """Settle the members that failed with this exception, and log the exception once."""
        excepted = members[0].running.task.excepted(error)
        said = describe_error(error, redact=self._redact, excepted=excepted)
        words = redacted(self._redact, message_of(error))
        facts = run.facts() | {"failed": len(members), "job": members[0].running.claim.id}
        many = counted(len(members), "job")
        warn_with_traceback(
            log,
            "%s of a batch of %d failed: %s: %s",
            (many, len(run.members), type(error).__name__, words),
            traceback_in(said),
            facts,
        )
        for member in members:
            each = member.running
            each.settled = True
            verdict = each.task.retry.verdict(error, each.context.attempt, self._rng.random)
            if verdict.outcome == "retry" and each.is_last_attempt:
                verdict = RetryVerdict("final", 0.0, Reason.ATTEMPTS_SPENT)
            given_back = verdict.outcome == "rollback"
            self._report(
                each,
                verdict.outcome,
                round(verdict.delay * 1000),
                verdict.reason,
                "null" if given_back else said,
            )

    def _free(self, running: Running) -> None:
        if not isinstance(running, BatchRun):
            self._members.pop(running, None)
            super()._free(running)
            self.begin_ready()
            return
        self._runs -= 1
        for member in running.members:
            self._members.pop(member.running, None)
            super()._free(member.running)
        if running.limit is not None:
            self._limits.end(running, running.limit)
        if running.takes_place:
            self._on_free(running)
        self.begin_ready()


def _work_of(run: BatchRun, call: Callable[..., Any]) -> Callable[[], Any]:
    """Return a function that calls the batch's handler. For a ``def`` handler, the function blocks the thread that
    calls it.
    """
    if run.task.is_async:
        return lambda: _work(run, call)
    return lambda: now(_work(run, call))


async def _work(run: BatchRun, call: Callable[..., Any]) -> None:
    """Call the handler with all open members. With ``on_error="halve"``, call the handler again with each half of the
    members after an exception.

    Raises the handler's exception if there is no halving, or if the exception is one of _OF_ALL.
    """
    context, task = run.context, run.task
    assert isinstance(context, BatchContext)
    assert task.batch is not None
    halves = task.batch.on_error == "halve"
    parts = deque([run.members])
    failed_calls = 0
    while parts:
        members = [member for member in parts.popleft() if member.is_open]
        if not members:
            continue
        jobs = context.jobs = [member.job for member in members]
        try:
            value = call(**{task.arguments.parameter: jobs})  # type: ignore[attr-defined]
            if task.is_async:
                value = await value
            context.raise_if_timed_out()
            _note_results(members, value)
        except Exception as error:
            if not halves or isinstance(error, _OF_ALL):
                raise
            failed_calls += 1
            half = len(members) // 2
            if half and failed_calls < FAILED_CALLS_MAX:
                parts += [members[:half], members[half:]]
            else:
                for member in members:
                    member.error = error
            if failed_calls >= FAILED_CALLS_MAX:
                for member in (member for part in parts for member in part):
                    member.error = error
                return
        else:
            failed_calls = 0


def _note_results(members: Sequence[Member], value: Any) -> None:
    """Mark these members of a batch as done. Convert the results that must be kept to JSON."""
    results = results_of([member.job for member in members], value)
    for member, result in zip(members, results, strict=True):
        member.is_done = True
        if member.running.keeps and member.job.failure is None:
            member.running.keep(result)
