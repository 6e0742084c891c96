"""Runs handlers: async ones on the event loop, sync ones in threads. Each claim ends in one Settlement.

It decides how a handler's end is to be reported (success, retry, final failure, rollback), not when; the worker
collects settlements and sends them together.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rq_core import context as job_context
from rq_core.context import JobContext
from rq_core.errors import (
    HandlerSignal,
    HandlerTimeout,
    JobCancelled,
    LeaseLost,
    WorkerStopping,
)
from rq_core.isolation import IsolationPool, Raised
from rq_core.job import Claim, Spec, read_spec
from rq_core.redaction import Redact, redacted
from rq_core.retry import Verdict
from rq_core.settlement import Settlement, describe, describe_words, message_of
from rq_core.task import Task

log = logging.getLogger(__name__)

START_GRACE: Final = 20.0
"""Seconds that the process of an isolated handler may take to begin, beyond the handler's own time."""
LANE_CHANGED: Final = "lane_changed"
"""The reason of a rollback into another lane."""


@dataclass(slots=True, eq=False)
class Running:
    """A claim whose handler has been started."""

    claim: Claim
    context: JobContext
    started: float
    timeout: float | None
    """Seconds, from the start."""
    handler: asyncio.Task[None] | None = None
    """Of an async handler."""
    ending: HandlerSignal | None = None
    """Why it was asked to stop, if it was."""
    settled: bool = False
    timer: asyncio.TimerHandle | None = field(default=None)


class Executor:
    """Starts claims' handlers and calls ``on_settlement`` (on the loop) once for each that must be reported.

    ``on_start`` is called before a handler begins, ``on_free`` when it no longer occupies its place; a sync handler
    that timed out is reported at once, but occupies its thread until it returns.
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
        on_start: Callable[[Running], None] = lambda _: None,
        redact: Redact | None = None,
        rng: random.Random | None = None,
        isolate: bool = True,
    ) -> None:
        """Without ``isolate`` no processes are started: isolated tasks run here."""
        self._tasks = tasks
        self._worker = worker
        self._timeout = timeout
        self._on_settlement = on_settlement
        self._on_free = on_free
        self._on_start = on_start
        self._redact = redact
        self._pool = IsolationPool() if isolate else None
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self._threads = concurrent.futures.ThreadPoolExecutor(threads, "rq-core-job")
        self.running: dict[tuple[str, str, str], Running] = {}
        """By queue, job and fence: a job may be claimed anew while an old handler of it still runs."""

    def start(self, claim: Claim) -> Running | None:
        """Start a claim's handler. None: it could not be started, and its settlement has been given."""
        try:
            spec = read_spec(claim.spec)
        except ValueError as error:
            self._refuse(claim, "final", "unreadable", error)
            return None
        task = self._tasks.get(spec.task)
        if task is None:
            self._refuse(claim, "rollback", "unknown_task", LookupError(f"no task {spec.task!r}"))
            return None
        try:
            arguments = task.arguments.load(spec.args_json)
            lane = task.lane_of_claim(claim.queue, claim.lane, arguments)
        except Exception as error:  # noqa: BLE001 - a model's own checks, or a key's function, may raise anything
            self._refuse(claim, "rollback", "unknown_arguments", error)
            return None
        if lane is not None:
            # Enqueued by somebody who did not know its caps: it must not run uncounted.
            self._on_settlement(Settlement(claim, "rollback", 0, LANE_CHANGED, lane=lane))
            return None
        running = self._running(claim, spec, task)
        self.running[claim.queue, claim.id, claim.fence] = running
        # Before the handler begins: it may hold the GIL from its first step on.
        self._on_start(running)
        loop = asyncio.get_running_loop()
        if self._pool is not None and task.isolation == "process":
            handler = self._run_isolated(self._pool, running, task, spec.args_json)
            running.handler = loop.create_task(handler)
        elif task.is_async:
            running.handler = loop.create_task(self._run_async(running, task, arguments))
        else:
            self._run_sync(running, task, arguments, loop)
        limit = running.timeout
        if limit is not None and self._pool is not None and task.isolation is not None:
            # Until its process has begun, which may have to be started and to import the app first.
            limit += START_GRACE
        self._limit_time(running, limit)
        return running

    def _limit_time(self, running: Running, seconds: float | None) -> None:
        if running.timer is not None:
            running.timer.cancel()
        if seconds is not None:
            loop = asyncio.get_running_loop()
            running.timer = loop.call_later(seconds, self._timed_out, running)

    def end(self, running: Running, why: HandlerSignal) -> None:
        """Ask a handler to stop: an async one is cancelled, a sync one sees ``current_job().cancelled``.

        Only the first reason counts: a handler that cleans up is not interrupted again.
        """
        if running.ending is not None:
            return
        running.ending = why
        running.context.tell(why)
        if running.handler is not None:
            running.handler.cancel()

    def close(self) -> bool:
        """Start no more. Returns False if threads are still busy with handlers that do not stop."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._pool is not None:
            self._pool.close()
        return not self.running

    def _running(self, claim: Claim, spec: Spec, task: Task[Any, Any]) -> Running:
        timeout = task.timeout if task.timeout is not None else self._timeout
        if spec.timeout_ms is not None:
            timeout = spec.timeout_ms / 1000
        context = JobContext(
            id=claim.id,
            queue=claim.queue,
            task=spec.task,
            claim=claim.number,
            failures=claim.failures,
            losses=claim.losses,
            fence=claim.fence,
            worker=self._worker,
        )
        return Running(claim, context, time.monotonic(), timeout)

    def _refuse(self, claim: Claim, verdict: str, reason: str, error: BaseException) -> None:
        log.warning(
            "job cannot be run here: %s",
            redacted(self._redact, message_of(error)),
            extra={"job": claim.id, "queue": claim.queue, "reason": reason},
        )
        said = describe(error, with_traceback=False, redact=self._redact)
        self._on_settlement(Settlement(claim, verdict, 0, reason, said))

    async def _run_async(
        self, running: Running, task: Task[Any, Any], arguments: dict[str, Any]
    ) -> None:
        try:
            with job_context.running(running.context):
                await task.function(**arguments)
        except BaseException as error:  # noqa: BLE001 - also SystemExit: only this job has failed
            self._ended(running, task, error)
        else:
            self._ended(running, task, None)
        finally:
            self._free(running)

    async def _run_isolated(
        self, pool: IsolationPool, running: Running, task: Task[Any, Any], args_json: str
    ) -> None:
        try:
            raised = await pool.run(
                running, task, args_json, lambda: self._limit_time(running, running.timeout)
            )
        except BaseException as error:  # noqa: BLE001 - the claim must be settled whatever went wrong
            self._ended(running, task, error)
        else:
            if raised is None:
                self._ended(running, task, None)
            elif running.ending is not None:
                self._ended(running, task, running.ending)
            else:
                self._raised(running, raised)
        finally:
            self._free(running)

    def _run_sync(
        self,
        running: Running,
        task: Task[Any, Any],
        arguments: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        def handler() -> None:
            error: BaseException | None = None
            try:
                with job_context.running(running.context):
                    task.function(**arguments)
            except BaseException as raised:  # noqa: BLE001 - also SystemExit: the thread must report
                error = raised
            loop.call_soon_threadsafe(finish, error)

        def finish(error: BaseException | None) -> None:
            try:
                self._ended(running, task, error)
            finally:
                self._free(running)

        self._threads.submit(handler)

    def _timed_out(self, running: Running) -> None:
        assert running.timeout is not None
        error = HandlerTimeout(seconds=running.timeout)
        self.end(running, error)
        if running.handler is None:
            log.warning(
                "handler ran longer than %g s; its thread cannot be stopped and stays occupied",
                running.timeout,
                extra=_facts(running),
            )
            self._ended(running, self._tasks[running.context.task], error)

    def _ended(self, running: Running, task: Task[Any, Any], error: BaseException | None) -> None:
        if running.settled:
            return
        running.settled = True
        claim = running.claim
        if error is None:
            self._on_settlement(Settlement(claim, "complete"))
            return
        # However a handler ends that was asked to stop, that is why.
        error = running.ending or error
        if isinstance(error, LeaseLost):
            # That claim is not in force: there is nothing to report it to.
            log.warning("lease lost, handler stopped", extra=_facts(running))
            return
        if isinstance(error, WorkerStopping):
            self._on_settlement(Settlement(claim, "rollback", 0, "shutdown"))
            return
        if isinstance(error, JobCancelled):
            said = describe(error, redact=self._redact)
            self._on_settlement(Settlement(claim, "final", 0, "cancelled", said))
            return
        verdict = task.retry.verdict(error, claim.failures + 1, self._rng.random)
        said = describe(error, redact=self._redact)
        self._failed(running, verdict, type(error).__name__, message_of(error), said)

    def _raised(self, running: Running, raised: Raised) -> None:
        """An isolated handler failed; its process has asked the task's policy."""
        if running.settled:
            return
        running.settled = True
        said = describe_words(raised.type, raised.message, raised.traceback, redact=self._redact)
        verdict = Verdict("final" if raised.outcome == "final" else "retry", *raised[1:3])
        self._failed(running, verdict, raised.type, raised.message, said)

    def _failed(
        self, running: Running, verdict: Verdict, kind: str, message: str, said: str
    ) -> None:
        log.warning(
            "job failed: %s: %s",
            kind,
            redacted(self._redact, message),
            extra=_facts(running) | {"verdict": verdict.outcome},
        )
        delay_ms = round(verdict.delay * 1000)
        self._on_settlement(
            Settlement(running.claim, verdict.outcome, delay_ms, verdict.reason, said)
        )

    def _free(self, running: Running) -> None:
        if running.timer is not None:
            running.timer.cancel()
        claim = running.claim
        self.running.pop((claim.queue, claim.id, claim.fence), None)
        self._on_free(running)


def _facts(running: Running) -> dict[str, Any]:
    context = running.context
    return {
        "job": context.id,
        "queue": context.queue,
        "task": context.task,
        "claim": context.claim,
        "ran_s": round(time.monotonic() - running.started, 3),
    }
