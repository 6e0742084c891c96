"""The error by which a handler pauses the jobs of a scope, a group that a rate or a breaker counts. A handler raises
it, for example, if a service refuses further requests."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from rq_core.app.handlers.context import JobContext, job_here
from rq_core.errors import InvalidOption, UsageError
from rq_core.model.limits.limit import PAUSE_MAX_MS
from rq_core.model.limits.scopes import family_of, is_rate, scopes_of
from rq_core.signals import HandlerSignal

AFTER_S_MAX: Final = PAUSE_MAX_MS / 1000
"""Longest pause, in seconds."""


class PauseScope(HandlerSignal):
    """the handler paused {scope} for {after} s; no attempt is spent."""

    def __init__(
        self, scope: str, *, after: float | timedelta = 60.0, reason: str = "scope paused"
    ) -> None:
        """Pause a scope. Raise this error if a service answers that there were too many requests.

        No job of ``scope`` begins until ``after`` is over (seconds, or a timedelta, of at most a day). The handler's
        own job goes back to its queue. After the pause, the jobs of a rate begin one after another, as fast as the rate
        allows. The jobs of a breaker wait until one of them, the probe, has succeeded.

        ``scope`` is the ``per`` or the ``name`` of a Rate or a Breaker of the task. All rates and breakers of the job
        with this ``per`` or ``name`` are paused. A new pause never shortens an earlier one. Raises UsageError if no
        rate and no breaker of the job has this scope. Raises UsageError in a batch handler and in an isolated handler.
        Raises InvalidOption for an invalid duration.
        """
        super().__init__(str(reason), scope=scope, after=after)
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        given: object = seconds
        valid = isinstance(given, int | float) and not isinstance(given, bool)
        if not valid or not 0 <= seconds <= AFTER_S_MAX:
            must = f"must be seconds (or a timedelta) from 0 to {AFTER_S_MAX:,.0f}"
            raise InvalidOption.of("after", after, must)
        self.scope = scope
        self.after = float(seconds)
        self.pauses = ""
        """The rates and breakers to pause, each as ``SCOPE|MS`` (MS is the pause in milliseconds), separated by
        spaces."""
        if (job := job_here()) is not None:
            self.find_rates(job)

    def find_rates(self, job: JobContext) -> None:
        """Find the rates and breakers of a job that this error pauses. Raises UsageError if the job has no rate and no
        breaker with the scope of this error.

        The constructor calls this method. The worker calls it again, since the constructor finds no job in a thread
        that the handler started.
        """
        if job.why_no_costs:
            raise UsageError(
                f"PauseScope({self.scope!r}) is not for a batch, nor for a handler in a process of its own: use a task"
                " without batch and isolation"
            )
        rates = [name for name in scopes_of(job.lane or "") if is_rate(name)]
        meant = [name for name in rates if _base(name) in (self.scope, f"{job.task}.{self.scope}")]
        if not meant and job.lane is not None:
            known = ", ".join(sorted({_base(name).removeprefix(f"{job.task}.") for name in rates}))
            like = "a Rate without per" if self.scope == "task" else f"Rate(…, per={self.scope!r})"
            raise UsageError(
                f"PauseScope({self.scope!r}) needs a rate or a breaker of the job: it has {known or 'none'}. Declare"
                f" {like} in the caps of task {job.task!r}, or such a Breaker as its breaker"
            )
        self.pauses = " ".join(f"{name}|{round(self.after * 1000)}" for name in meant)


def _base(scope: str) -> str:
    return family_of(scope).partition("@")[0]
