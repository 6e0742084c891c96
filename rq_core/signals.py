"""Errors by which a handler decides what happens to its job, and errors that rq-core raises in a handler to stop it.
InvalidFlow, the error for a flow that cannot be declared, is here, too.

As in :mod:`rq_core.errors`, the docstring of a class is its default message.
"""

from __future__ import annotations

from typing import Any

from rq_core.errors import SECONDS_MAX, InvalidOption, RqCoreError, UsageError


class HandlerSignal(RqCoreError):
    """Raised by a handler to say what should happen to its job, or raised in a handler to stop it."""


def _seconds(after: object) -> float:
    """Convert a delay that a handler passed, a number of seconds or a timedelta, to seconds. A negative delay becomes
    0. Raises InvalidOption for an invalid delay.
    """
    from datetime import timedelta

    seconds = after.total_seconds() if isinstance(after, timedelta) else after
    # NaN is not less than or equal to any number.
    if (
        isinstance(seconds, int | float)
        and not isinstance(seconds, bool)
        and seconds <= SECONDS_MAX
    ):
        return float(max(seconds, 0))
    must = f"must be seconds (or a timedelta) up to {SECONDS_MAX:,}"
    raise InvalidOption.of("after", after, must)


class RetryLater(HandlerSignal):
    """the handler asked to be run again later."""

    def __init__(self, reason: str = "retry later", *, after: float | None = None) -> None:
        """Create the exception. ``after`` is the delay before the next attempt, in seconds or as a timedelta. With
        None, the task's retry policy sets the delay.

        Raises InvalidOption for an invalid delay.
        """
        super().__init__(str(reason), after=after)
        self.after = None if after is None else _seconds(after)


class Snooze(HandlerSignal):
    """the handler gave its job back for {after} s; no attempt is spent."""

    def __init__(self, after: float, reason: str = "snoozed") -> None:
        """Create the exception. ``after`` is the time in which no worker claims the job, in seconds or as a timedelta.
        With 0 or less, the job is ready at once.

        Raises InvalidOption for an invalid duration.
        """
        super().__init__(str(reason), after=after)
        self.after = _seconds(after)


class GiveUp(HandlerSignal):
    """the handler gave up: no retry, whatever attempts are left."""

    def __init__(self, reason: str = "gave up") -> None:
        super().__init__(str(reason))


class MemberFailed(HandlerSignal):
    """the batch handler failed this job."""


class StepUnusable(GiveUp):
    """the step was run, but the value that it returned is not kept: the job is dead, unless the handler catches this
    error."""


class StepMismatch(GiveUp):
    """the value that the step has saved does not fit the type that the step's function returns now."""


class StepsSpent(GiveUp):
    """the job's steps have reached the maximum number, or the maximum size, that a job may have."""


class ChildrenFailed(GiveUp):
    """too few children of this job have succeeded: the job is dead, unless the handler catches this error."""

    def __init__(self, reason: str = "too few children succeeded", items: Any = ()) -> None:
        super().__init__(reason)
        self.items = items
        """The items of the map, each with its value or its error."""


class InvalidFlow(UsageError):
    """flow {flow!r} cannot be made: {why}."""

    flow: str
    why: str


class Parking(BaseException):
    """Raised in a handler whose job must wait until a time or for a signal. The handler ends, and the job is parked.

    Handlers must not catch Parking. It is a BaseException, so `except Exception` does not catch it.
    """

    def __init__(self, waits: tuple[int, ...]) -> None:
        super().__init__("the job is parked until what it waits for has come")
        self.waits = waits
        """The numbers of the waits and sleeps that the job waits for, as its saved steps are numbered."""


class HandlerTimeout(HandlerSignal):
    """the handler ran longer than its timeout of {seconds:g} s."""

    seconds: float


class HandlerDied(HandlerSignal):
    """the process of the handler ended {how}."""

    how: str


class JobCancelled(HandlerSignal):
    """the job was cancelled."""


class WorkerStopping(HandlerSignal):
    """the worker stops and gives the job back; no attempt is spent."""


class LeaseLost(HandlerSignal):
    """the claim is no longer in force, so the handler's outcome will be refused."""
