"""One claim whose handler is about to be started, or was started."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from rq_core.app.handlers.context import JobContext
from rq_core.app.task import Task
from rq_core.errors import HandlerSignal
from rq_core.model.job import Claim
from rq_core.model.outcome import UNFINISHED
from rq_core.model.result_encoding import NO_VALUE

UNFINISHED_VALUE: Final = f"{NO_VALUE}{UNFINISHED}"
"""The value of a handler that has returned, until it is JSON."""


class Running:
    """A claim whose handler is about to be started, or was."""

    __slots__ = (
        "args_json", "arguments", "begun", "claim", "context", "ended", "ending", "function", "handler", "keeps",
        "limit", "max_attempts", "over", "settled", "started", "task", "timeout", "value",
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
        """After how many failures the job is dead. None in the argument: the task decides, since the producer did not
        know it."""
        self.context = context
        self.task = task
        self.function = task.function
        """The function to call with the arguments: the task's own, or one that runs it inside of its surroundings."""
        self.arguments = arguments
        self.args_json = args_json
        self.timeout = timeout
        """The timeout in seconds, from the start."""
        self.started = time.monotonic()
        self.over: float | None = None
        """When its timeout is over, on the monotonic clock. None: it has no timeout, or its handler has not begun."""
        self.ended: float | None = None
        """When its thread ended, on the monotonic clock; the loop may look later."""
        self.limit: float | None = None
        """Seconds to which it is limited now: its timeout, or the time that it has to clean up."""
        self.begun = True
        """False while the process of an isolated handler starts and imports the task's module."""
        self.handler: asyncio.Task[None] | None = None
        """The asyncio task of an async handler."""
        self.ending: HandlerSignal | None = None
        """The reason for which it was asked to stop, if it was."""
        self.settled = False
        self.keeps = keeps
        """Whether what its handler returns is kept."""
        self.value = ""
        """The kept result, as Returned.dump writes it; empty until the handler has returned, or if nothing is kept."""

    def keep(self, value: Any) -> None:
        """Make JSON of the value that its handler has returned."""
        self.value = UNFINISHED_VALUE
        self.value = self.task.returned.dump(value, self.keeps)

    @property
    def can_stop(self) -> bool:
        """Whether to wait for it when the worker stops: it is cancelled, or has something to leave. Another ``def``
        handler has nothing to do before its process ends."""
        return self.handler is not None or self.function is not self.task.function

    def facts(self) -> dict[str, Any]:
        """Return the fields of a log line about it."""
        context = self.context
        return {
            "job": context.id,
            "queue": context.queue,
            "task": context.task,
            "claim": context.claim,
            "ran_s": round(time.monotonic() - self.started, 3),
        }
