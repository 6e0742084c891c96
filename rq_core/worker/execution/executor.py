"""Runs async handlers on the event loop and sync handlers in threads. For each claim, it produces one Settlement: the
report of how the claim ended. A claim whose lease was lost needs no report.

The executor decides how a claim is settled (success, retry, final failure, rollback, park). The worker decides when it
sends the settlements.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from rq_core.app.handlers import context as job_context
from rq_core.app.handlers.context import JobContext
from rq_core.app.handlers.handler_setup import Surroundings
from rq_core.app.handlers.pausing import PauseScope
from rq_core.app.handlers.process_scope import Resources
from rq_core.app.handlers.redaction import (
    Redact,
    describe_error,
    describe_words,
    message_of,
    redacted,
    traceback_in,
)
from rq_core.app.handlers.retry import Outcome, RetryVerdict
from rq_core.app.task import Task
from rq_core.errors import UsageError
from rq_core.model.durable.tries import is_spent
from rq_core.model.headers import NO_HEADERS, read_headers
from rq_core.model.job import Claim, read_spec
from rq_core.model.lib.logs import warn_with_traceback
from rq_core.model.lib.text import counted
from rq_core.model.limits.scopes import family_of
from rq_core.model.outcome import reason_of
from rq_core.model.result_encoding import NO_VALUE
from rq_core.model.table.reasons import Reason
from rq_core.signals import (
    HandlerSignal,
    HandlerTimeout,
    JobCancelled,
    LeaseLost,
    Parking,
    WorkerStopping,
)
from rq_core.worker.execution.process_pool import IsolationPool, Raised
from rq_core.worker.execution.running import Running, call_sync
from rq_core.worker.execution.saver import LoopHome, Saver, ThreadHome
from rq_core.worker.execution.shows import Shows
from rq_core.worker.execution.threads import Threads
from rq_core.worker.execution.time_limits import TimeLimits, has_begun, start_task
from rq_core.worker.settlement import Settlement

log = logging.getLogger(__name__)

NOT_BEGUN: Final = (
    "the process of the handler was not ready within its timeout of {:g} s; starting the process and importing the"
    " task's module count toward the timeout"
)
"""The message of a HandlerTimeout whose isolated handler (in its own process) had not begun before the timeout."""
_OUTCOMES: Final[Mapping[str, Outcome]] = {"final": "final", "rollback": "rollback"}
"""Word in the report of an isolated handler's process → outcome of the claim. Any other word means a retry."""
HEAR_S: Final = 0.01
"""Seconds that the loop waits, after an isolated handler's timeout, for a report that was sent before the timeout."""
END_GRACE_S: Final = 20.0
"""Seconds that an async handler may take to clean up after it was asked to stop; then its claim is settled anyway. This
is less than the time for which the worker still extends the lease of a job that has timed out."""


class Executor:
    """Runs the handlers of claimed jobs. Calls ``on_settlement`` on the event loop when Redis must learn how a claim
    ended, and ``on_free`` when a handler's place is free.

    A handler that does not stop in time is settled anyway: a sync handler at its timeout, an async handler END_GRACE_S
    after it was cancelled. The handler occupies its place until it returns.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task[Any, Any]],
        *,
        worker: str,
        threads: int,
        timeout: float | None,
        on_settlement: Callable[[Settlement], None],
        on_free: Callable[[Running], None],
        surroundings: Surroundings,
        redact: Redact | None = None,
        rng: random.Random | None = None,
        isolate: bool = True,
        saver: Saver | None = None,
        shows: Shows | None = None,
    ) -> None:
        """``isolate``: if false, tasks with isolation run in this process, not in a child process. ``timeout``: seconds
        for tasks without their own timeout; None: no timeout. ``saver`` saves the steps of durable jobs. ``shows``
        sends jobs' progress, and the chunks of their streams.
        """
        self._saver, self._shows = saver, shows
        # One for all handlers: one for each would be in a reference cycle with its job.
        self._home = None if saver is None else self._home_of
        self._tasks, self._worker, self._timeout = tasks, worker, timeout
        self._on_settlement, self._on_free = on_settlement, on_free
        self._resources, self._surroundings, self._redact = Resources(), surroundings, redact
        self._pool = IsolationPool(saver) if isolate else None
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self._threads = Threads(threads, "rq-core-job", work=call_sync, on_end=self._thread_ended)
        self._limits = TimeLimits(self._timed_out)
        self.running: dict[tuple[str, str, str], Running] = {}
        """Running claims by (queue, job id, fence): a job may be claimed again while its old handler still runs."""

    @property
    def busy(self) -> bool:
        """Return whether a handler runs whose claim is not settled yet."""
        return any(not running.settled for running in self.running.values())

    @property
    def unsettled(self) -> list[Running]:
        """The running handlers whose claims are not settled. (A settled one may run on, if it ignores its timeout.)"""
        return [running for running in self.running.values() if not running.settled]

    def start(self, claim: Claim) -> Running | None:
        """Start a claim's handler. If it cannot run here, pass a settlement to ``on_settlement`` and return None."""
        running = self.prepare(claim)
        if running is not None:
            self.launch(running)
        return running

    def prepare(self, claim: Claim) -> Running | None:
        """Prepare a claim's handler. If it cannot run here, pass a settlement to ``on_settlement`` and return None."""
        try:
            spec = read_spec(claim.spec)
            name, args_json = spec.task, spec.args_json
            headers = read_headers(spec.headers_json) if spec.headers_json else NO_HEADERS
        except ValueError as error:
            self._refuse(claim, "final", Reason.UNREADABLE, error)
            return None
        task = self._tasks.get(name)
        if task is None:
            self._refuse(claim, "rollback", Reason.UNKNOWN_TASK, LookupError(f"no task {name!r}"))
            return None
        most = task.options.max_losses
        if spec.open_losses and most and is_spent(claim.losses, claim.base.losses, most):
            lost = RuntimeError(
                f"it has lost {counted(claim.losses, 'worker')}, and its task has max_losses={most}"
            )
            self._refuse(claim, "final", Reason.POISON, lost)
            return None
        try:
            arguments = task.arguments.load(args_json)
            lane = task.lane_of_claim(claim.queue, claim.lane, arguments)
        except BaseException as error:  # noqa: BLE001 - a model's own checks, or a key's function: also SystemExit
            self._refuse(claim, "rollback", Reason.UNKNOWN_ARGUMENTS, error)
            return None
        if lane is not None:
            # The job's producer did not know the task's caps: the job must not run without a holder in them.
            self._on_settlement(Settlement(claim, "rollback", 0, Reason.LANE_CHANGED, lane=lane))
            return None
        timeout = task.timeout if task.timeout is not None else self._timeout
        if spec.timeout_ms is not None:
            timeout = spec.timeout_ms / 1000
        context = JobContext.of_claim(claim, name, self._worker, headers)
        context.shows = self._shows
        running = Running(
            claim,
            context,
            task,
            arguments,
            args_json,
            timeout,
            keeps=spec.keeps,
            max_attempts=spec.max_attempts,
        )
        self.running[claim.queue, claim.id, claim.fence] = running
        return running

    def launch(self, running: Running) -> None:
        """Start a prepared handler. If the handler was asked to stop before its start, settle its claim instead."""
        if running.ending is not None or running.settled:
            self._ended(running, running.ending)
            self._free(running)
            return
        task = running.task
        if self._pool is not None and task.isolation is not None:
            running.begun = False
            running.handler = start_task(self._run_isolated(self._pool, running))
            return
        running.context.home = self._home
        if task.steps or self._surroundings.arounds:
            running.function = self._surroundings.wrap(task, running.context, self._resources)
        if task.is_async:
            running.handler = start_task(self._run_async(running))
        else:
            self._launch_thread(running)

    def _home_of(self, context: JobContext) -> LoopHome | ThreadHome | None:
        """Return the object through which a handler's steps use the worker, or None if the handler has ended."""
        running = self.running.get((context.queue, context.id, context.fence))
        if running is None or self._saver is None:
            return None
        return self._saver.home(running, self.end, self._resources)

    def _launch_thread(self, running: Running) -> None:
        if self._saver is not None:
            self._saver.loop = asyncio.get_running_loop()
        self._begin_time(running)
        try:
            self._threads.submit(running)
        except RuntimeError as error:
            # The machine has no more threads: that is not the job's fault.
            running.settled = True
            self._refuse(running.claim, "rollback", Reason.NOT_STARTED, error)
            self._free(running)

    def _begin_time(self, running: Running) -> None:
        """Start the timeout of a handler, if it has one. Call this just before the handler begins."""
        if running.timeout is not None:
            running.limit = running.timeout
            running.over = self._limits.begin(running, running.timeout)
            running.context.limit(running.timeout, running.over)

    def _limit_time(self, running: Running, seconds: float | None) -> None:
        if running.limit is not None:
            self._limits.end(running, running.limit)
        running.limit = seconds
        if seconds is not None:
            self._limits.begin(running, seconds)

    def end(self, running: Running, why: HandlerSignal | Parking) -> None:
        """Ask a handler to stop. An async handler is cancelled; a sync handler reads ``current_job().cancelled``.

        Only the first call has an effect: no later call interrupts the handler's clean-up.
        """
        if running.ending is not None:
            return
        running.ending = why
        running.context.tell(why)
        if isinstance(why, LeaseLost):
            log.warning("lease lost, the handler is asked to stop", extra=running.facts())
        if running.handler is None:
            if isinstance(why, LeaseLost):
                # Nothing is settled at the timeout: Redis later refuses the thread's settlement, which is logged.
                self._limit_time(running, None)
            return
        running.handler.cancel()
        if has_begun(running.handler):
            # A lost claim has nothing to settle; Redis later refuses the handler's settlement, which is logged.
            self._limit_time(running, None if isinstance(why, LeaseLost) else END_GRACE_S)
        else:
            # A task that is cancelled before its first step never runs, so it cannot report its end.
            self._ended(running, why)
            self._free(running)

    async def leave(self) -> None:
        """Close the dependencies of this process (but not while a handler runs, which may use them), and let idle child
        processes close their own dependencies and end."""
        leaving = [] if self.running else [self._resources.close()]
        if self._pool is not None:
            leaving.append(self._pool.end_idle())
        await asyncio.gather(*leaving)

    def close(self) -> bool:
        """Close the threads, the time limits and the child processes. Return False if handlers still run."""
        self._threads.close()
        self._limits.close()
        if self._pool is not None:
            self._pool.close()
        return not self.running

    def _refuse(self, claim: Claim, verdict: str, reason: str, error: BaseException) -> None:
        log.warning(
            "job cannot be run here: %s",
            redacted(self._redact, message_of(error)),
            extra={"job": claim.id, "queue": claim.queue, "reason": reason},
        )
        said = describe_error(error, with_traceback=False, redact=self._redact)
        self._on_settlement(Settlement(claim, verdict, 0, reason, said))

    async def _run_async(self, running: Running) -> None:
        # The asyncio task has its own copy of the context variables, so nothing has to be reset.
        job_context.enter(running.context)
        failure: BaseException | None = None
        self._begin_time(running)
        try:
            try:
                value = await running.function(**running.arguments)
            finally:
                if running.context.steps is not None:
                    # A step that has happened must be saved before the claim ends.
                    await running.context.steps.home.let_end()
                if running.over is not None:
                    running.context.raise_if_timed_out()
            if running.keeps:
                running.keep(value)
        except BaseException as error:  # noqa: BLE001 - also SystemExit: only this job has failed
            job_context.enter(None)
            failure = error
        # Outside the except block: an error of a backoff function would have the failure as its context, unredacted.
        try:
            self._ended(running, failure)
        finally:
            failure = None  # Its traceback refers to this frame.
            self._free(running)

    async def _run_isolated(self, pool: IsolationPool, running: Running) -> None:
        self._begin_time(running)
        try:
            raised = await pool.run(running, running.task, running.args_json)
        except BaseException as error:  # noqa: BLE001 - the claim must be settled whatever went wrong
            self._ended(running, error)
        else:
            if raised is None:
                self._ended(running, None)
            elif running.ending is not None:
                self._ended(running, running.ending)
            else:
                self._raised(running, raised)
        finally:
            self._free(running)

    def _thread_ended(self, running: Running, error: BaseException | None) -> None:
        try:
            self._ended(running, error)
        finally:
            self._free(running)

    def _timed_out(self, running: Running) -> None:
        """Handle the end of a handler's time limit: its timeout is over, or its time to clean up is over."""
        if running.ended is not None:
            # The handler's thread has recorded its end; its report follows, since the loop was late.
            return
        if running.ending is None:
            if self._pool is not None and self._pool.has_said(running):
                # The handler's process checks the timeout, too: its message is read first.
                self._limit_time(running, HEAR_S)
                return
            assert running.timeout is not None
            why = None if running.begun else NOT_BEGUN.format(running.timeout)
            self.end(running, HandlerTimeout(why, seconds=running.timeout))
            if running.handler is not None:
                return
        assert running.ending is not None
        log.warning(
            "handler was asked to stop and still runs; its place stays occupied: %s",
            running.ending,
            extra=running.facts(),
        )
        self._ended(running, running.ending)

    def _ended(self, running: Running, error: BaseException | None) -> None:
        if running.settled:
            return
        running.settled = True
        if isinstance(running.ending, Parking):
            if error is None:
                log.warning(
                    "handler went on although its job parks: it must not catch Parking or CancelledError",
                    extra=running.facts(),
                )
            self._report(running, "park", 0, Reason.PARKED)
            if self._saver is not None:
                self._saver.keep_box(running.context)
            return
        if error is None or running.value:
            # A handler that has returned has succeeded, also if the conversion of its value to JSON was interrupted.
            if running.value and running.value.startswith(NO_VALUE):
                why = running.value.removeprefix(NO_VALUE)
                problem = running.problem and redacted(self._redact, running.problem)
                why = f"{why}: {problem}" if problem else reason_of(why)
                log.warning(
                    "job succeeded, and its result is not kept: %s", why, extra=running.facts()
                )
            self._on_settlement(running.settlement("complete"))
            return
        # If the handler was asked to stop, that reason counts, regardless of how the handler ended.
        error = running.ending or error
        if isinstance(error, LeaseLost):
            # The claim is no longer in force: Redis would refuse any settlement. The lease is no longer extended.
            running.ending = error
            return
        if isinstance(error, WorkerStopping):
            self._report(running, "rollback", 0, Reason.SHUTDOWN)
            return
        if isinstance(error, JobCancelled):
            said = describe_error(error, redact=self._redact)
            self._report(running, "final", 0, Reason.CANCELLED, said)
            return
        if isinstance(error, PauseScope):
            try:
                error.find_rates(running.context)
                running.context.pauses = error.pauses
            except UsageError as wrong:
                error = wrong
        verdict = running.task.retry.verdict(error, running.context.attempt, self._rng.random)
        said = describe_error(error, redact=self._redact, excepted=running.task.excepted(error))
        self._failed(running, verdict, type(error).__name__, message_of(error), said)

    def _raised(self, running: Running, raised: Raised) -> None:
        """Settle the claim of a failed isolated handler. Its process has already applied the task's retry policy."""
        if running.settled:
            return
        running.settled = True
        words = raised.type, raised.message, raised.traceback
        said = describe_words(*words, redact=self._redact, excepted=raised.excepted)
        verdict = RetryVerdict(_OUTCOMES.get(raised.outcome, "retry"), *raised[1:3])
        self._failed(running, verdict, raised.type, raised.message, said)

    def _failed(
        self, running: Running, verdict: RetryVerdict, kind: str, message: str, said: str
    ) -> None:
        delay_ms = round(verdict.delay * 1000)
        if verdict.outcome == "rollback":
            if verdict.reason == Reason.SCOPE_PAUSED:
                paused = ", ".join(family_of(name) for name in running.context.pauses.split())
                log.info(
                    "job pauses %s for %g s",
                    paused or "no rate",
                    verdict.delay,
                    extra=running.facts(),
                )
            else:
                log.info("job snoozes for %g s", verdict.delay, extra=running.facts())
            self._report(running, "rollback", delay_ms, verdict.reason)
            return
        attempt, attempts = running.context.attempt, running.max_attempts
        if verdict.outcome == "retry" and running.is_last_attempt:
            # Redis would decide the same, unless the job leaves the number of attempts to the task.
            verdict = RetryVerdict("final", 0.0, Reason.ATTEMPTS_SPENT)
        will = f"dead, {verdict.reason}, after attempt {attempt} of {attempts}"
        if verdict.outcome == "retry":
            will = f"retry in {verdict.delay:,.1f} s, attempt {attempt + 1} of {attempts}"
        says = redacted(self._redact, message)
        facts = running.facts() | {"verdict": will}
        warn_with_traceback(log, "job failed: %s: %s", (kind, says), traceback_in(said), facts)
        self._report(running, verdict.outcome, delay_ms, verdict.reason, said)

    def _report(
        self, running: Running, verdict: str, delay_ms: int, reason: str, error: str = "null"
    ) -> None:
        """Pass the settlement of a handler that did not succeed to ``on_settlement``."""
        self._on_settlement(running.settlement(verdict, delay_ms, reason, error))

    def _free(self, running: Running) -> None:
        if running.limit is not None:
            self._limits.end(running, running.limit)
        claim = running.claim
        self.running.pop((claim.queue, claim.id, claim.fence), None)
        self._on_free(running)
