"""A claim whose handler is about to start, or runs."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from rq_core.app.handlers import context as job_context
from rq_core.app.handlers.context import JobContext
from rq_core.app.task import Task
from rq_core.model.durable.boxes import NOTHING_KNOWN
from rq_core.model.durable.tries import is_spent
from rq_core.model.job import Claim
from rq_core.model.limits.costs import costs_text
from rq_core.model.outcome import UNFINISHED
from rq_core.model.result_encoding import NO_VALUE
from rq_core.signals import HandlerSignal, Parking
from rq_core.worker.settlement import Settlement

UNFINISHED_VALUE: Final = f"{NO_VALUE}{UNFINISHED}"
"""The value of a claim whose handler has returned, until the result is converted to JSON."""


class Running:
    """A claim whose handler is about to start, or has started."""

    __slots__ = (
        "args_json", "arguments", "begun", "claim", "context", "ended", "ending", "function", "handler", "keeps",
        "limit", "max_attempts", "over", "problem", "settled", "started", "task", "timeout", "value",
    )  # fmt: skip

    def __init__(
        self,
        claim: Claim,
        context: JobContext,
        task: Task[Any, Any],
        arguments: dict[str, Any],
        args_json: str,
        timeout: float | None,
        *,
        keeps: str = "",
        max_attempts: int | None = None,
    ) -> None:
        self.claim = claim
        self.max_attempts = max_attempts or task.options.max_attempts
        """Number of failures after which the job is dead. An argument of None means that the producer did not know the
        number; then the task's option counts."""
        self.context = context
        self.task = task
        self.function = task.function
        """The function to call with the arguments: the task's own function, or a wrapper that provides its dependencies
        and runs it inside of the app's arounds (functions that surround each handler)."""
        self.arguments = arguments
        self.args_json = args_json
        self.timeout = timeout
        """The timeout in seconds, from the handler's start; None: no timeout."""
        self.started = time.monotonic()
        self.over: float | None = None
        """Monotonic time at which the timeout is over. None: there is no timeout, or the handler has not begun."""
        self.ended: float | None = None
        """Monotonic time at which a sync handler ended in its thread; the loop may notice the end later."""
        self.limit: float | None = None
        """Seconds of the time limit in force: of the timeout, or of the time to clean up; None: no limit."""
        self.begun = True
        """False while the process of an isolated handler starts and imports the task's module."""
        self.handler: asyncio.Task[None] | None = None
        """The asyncio task of an async or isolated handler; None for a sync handler."""
        self.ending: HandlerSignal | Parking | None = None
        """The reason why the handler was asked to stop; None if it was not asked."""
        self.settled = False
        self.keeps = keeps
        """The options for keeping the handler's result, as Returned.dump reads them; empty: the result is not kept."""
        self.value = ""
        """The kept result, as Returned.dump writes it; empty until the handler has returned, or if no result is
        kept."""
        self.problem = ""
        """The problem of a result that has no JSON form: which part of it, and why; empty for any other result."""

    @property
    def audit_result(self) -> str:
        """How much of each step's value the audit log keeps: ``digest`` or ``full``. The log keeps as much of the job's
        result. If the job keeps no result, the task's option counts.
        """
        return self.keeps or self.task.options.audit_result

    @property
    def waits(self) -> str:
        """The numbers of the waits and sleeps for which the job parks, separated by commas; empty if the job does not
        park.
        """
        ending = self.ending
        return ",".join(map(str, ending.waits)) if isinstance(ending, Parking) else ""

    def settlement(
        self, verdict: str, delay_ms: int = 0, reason: str = "error", error: str = "null"
    ) -> Settlement:
        """Build the settlement that reports how the claim ended, with this verdict, and with the handler's result,
        costs and pauses.
        """
        ran_s = (self.ended or time.monotonic()) - self.started
        context = self.context
        taken, pauses, steps = context.taken, context.pauses, context.steps
        if verdict == "complete" and steps is None and not taken and not pauses:
            # Most settlements are such. Every other argument has its default, and costs time.
            return Settlement(self.claim, verdict, task=context.task, ran_s=ran_s, value=self.value)
        known, save_again = NOTHING_KNOWN, None
        if steps is not None and verdict != "complete":
            waits = self.ending.waits if isinstance(self.ending, Parking) else ()
            known, save_again = steps.known_beside(waits), steps.save_again
        return Settlement(
            self.claim,
            verdict,
            delay_ms,
            reason,
            error,
            task=context.task,
            ran_s=ran_s,
            value=self.value if verdict == "complete" else "",
            waits=self.waits,
            known=known,
            save_again=save_again,
            taken=costs_text(taken) if taken else "",
            pauses=pauses,
            unsaved=None if steps is None else steps.unsaved,
        )

    def keep(self, value: Any) -> None:
        """Convert the handler's result to JSON, and store the JSON in ``value``."""
        self.value = UNFINISHED_VALUE
        self.value = self.task.returned.dump(value, self.keeps)
        self.problem = self.task.returned.problem_of(value, self.value)

    @property
    def is_last_attempt(self) -> bool:
        """Return whether no attempt is left if this attempt fails."""
        failures, most = self.claim.failures + 1, self.max_attempts
        return most is not None and is_spent(failures, self.context.base, most)

    @property
    def can_stop(self) -> bool:
        """Return whether a stopping worker should wait for this handler.

        The worker waits for a handler that it can cancel. It also waits for a handler with dependencies, or with
        *arounds* (functions that surround each handler). Any other ``def`` handler has nothing to close before the
        process ends.
        """
        return self.handler is not None or self.function is not self.task.function

    def facts(self) -> dict[str, Any]:
        """Return the fields of a log record about the claim."""
        context = self.context
        return {
            "job": context.id,
            "queue": context.queue,
            "task": context.task,
            "claim": context.claim,
            "ran_s": round(time.monotonic() - self.started, 3),
        }


def call_sync(running: Running) -> None:
    """Run a sync handler, in its thread."""
    if running.ending is not None:
        # The handler was asked to stop before its thread began.
        raise running.ending
    job_context.enter(running.context)
    try:
        try:
            value = running.function(**running.arguments)
        finally:
            if running.over is not None:
                running.context.raise_if_timed_out()
        if running.keeps:
            running.keep(value)
    finally:
        running.ended = time.monotonic()
