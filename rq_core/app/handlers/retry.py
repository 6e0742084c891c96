"""Retry policies. A policy decides whether a failed job runs again, and after how many seconds.

The worker asks the policy of the job's task. ``fail.lua`` counts the failures. If the job has no attempt left, the job
is dead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from rq_core.app.handlers.pausing import PauseScope
from rq_core.app.unknown_options import OF_POLICIES, naming_options
from rq_core.errors import InvalidOption
from rq_core.model.lib.durations import seconds_of
from rq_core.model.table.machine import DEFAULT_MAX_ATTEMPTS
from rq_core.model.table.reasons import Reason
from rq_core.signals import GiveUp, RetryLater, Snooze

if TYPE_CHECKING:
    import logging

Backoff = Literal["exponential", "linear", "fixed"] | Callable[[int], float]
Jitter = Literal["full", "equal", "none"] | bool
Outcome = Literal["retry", "final", "rollback"]
ErrorTypes = type[BaseException] | tuple[type[BaseException], ...]

_BACKOFFS: Final = ("exponential", "linear", "fixed")
_JITTERS: Final = ("full", "equal", "none")
_DOUBLINGS_MAX: Final = 64
"""Maximum number of times that ``base`` is doubled. More doublings would overflow before ``maximum`` could limit the
delay."""


class RetryVerdict(NamedTuple):
    """The decision of a retry policy about a job whose handler raised an error.

    ``outcome`` is retry, final or rollback. After a rollback, the job returns to its queue, and the claim does not
    count as an attempt. ``delay`` is in seconds. ``reason`` is one word for the log.
    """

    outcome: Outcome
    delay: float
    reason: str


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how soon a task's failed jobs are retried. Durations are in seconds. Raises InvalidOption.

    The delay after the n-th failure depends on ``backoff``, and is at most ``maximum``:

    - exponential: base * 2**(n-1)
    - linear: base * n
    - fixed: base
    - a function: the number of seconds that it returns for n, without jitter.

    Jitter spreads the retries of jobs that failed at the same time. ``"full"`` (or True) is a random time from 0 to the
    delay. ``"equal"`` is a random time from half of the delay to the delay. ``"none"`` (or False) is the delay itself.
    These are "Full Jitter" and "Equal Jitter" of Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture
    Blog, March 2015.

    With ``retry_on``, only errors of these types are retried. Errors of the types in ``give_up_on`` are never retried.
    """

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    backoff: Backoff = "exponential"
    base: float = 1.0
    maximum: float = 3600.0
    jitter: Jitter = True
    retry_on: ErrorTypes = ()
    give_up_on: ErrorTypes = ()

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= 1_000_000:
            raise InvalidOption.of(
                "max_attempts", self.max_attempts, "must be a whole number from 1 to 1,000,000"
            )
        if self.backoff not in _BACKOFFS and not callable(self.backoff):
            raise InvalidOption.of(
                "backoff",
                self.backoff,
                f"must be one of {', '.join(_BACKOFFS)}, or a function of the number of failures",
            )
        if not isinstance(self.jitter, bool) and self.jitter not in _JITTERS:
            raise InvalidOption.of(
                "jitter",
                self.jitter,
                f"must be one of {', '.join(_JITTERS)}, True (full) or False (none)",
            )
        object.__setattr__(self, "base", seconds_of("base", self.base))
        object.__setattr__(self, "maximum", seconds_of("maximum", self.maximum))
        for option in ("retry_on", "give_up_on"):
            types = getattr(self, option)
            types = types if isinstance(types, tuple) else (types,)
            if not all(
                isinstance(each, type) and issubclass(each, BaseException) for each in types
            ):
                raise InvalidOption.of(
                    option, types, "must be an exception type or a tuple of them"
                )
            object.__setattr__(self, option, types)

    def delay(self, failures: int, random: Callable[[], float]) -> float:
        """Return the seconds until the next attempt, after ``failures`` (1 or more) failures.

        ``random`` returns a float in [0, 1). Raises InvalidOption if a backoff function returns no duration. If a
        backoff function raises an exception, this method raises it, too.
        """
        if callable(self.backoff):
            return min(seconds_of("backoff", self.backoff(failures)), self.maximum)
        return self._spread(min(self._grown(failures), self.maximum), random)

    def _grown(self, failures: int) -> float:
        if self.backoff == "fixed":
            return self.base
        if self.backoff == "linear":
            return self.base * failures
        return math.ldexp(self.base, min(failures - 1, _DOUBLINGS_MAX))

    def _spread(self, delay: float, random: Callable[[], float]) -> float:
        if self.jitter is True or self.jitter == "full":
            return delay * random()
        if self.jitter == "equal":
            return delay / 2 + delay / 2 * random()
        return delay

    def verdict(
        self, error: BaseException, failures: int, random: Callable[[], float]
    ) -> RetryVerdict:
        """Decide whether a job whose handler raised ``error`` is retried. Never raises.

        ``failures`` includes this failure. The verdict ignores the maximum number of attempts: fail.lua decides whether
        an attempt is left, since it knows the job's own limit.
        """
        if isinstance(error, GiveUp):
            return RetryVerdict("final", 0.0, Reason.GAVE_UP)
        if isinstance(error, Snooze):
            return RetryVerdict("rollback", _sane(error, error.after, self.maximum), Reason.SNOOZED)
        if isinstance(error, PauseScope):
            # The delay also holds if no rate can be paused, since an operator has set its limit to none: otherwise the
            # job would begin again at once.
            return RetryVerdict("rollback", error.after, Reason.SCOPE_PAUSED)
        if isinstance(error, RetryLater):
            if error.after is None:
                return RetryVerdict("retry", self._safe_delay(failures, random), "retry_later")
            return RetryVerdict("retry", _sane(error, error.after, self.maximum), "retry_later")
        if isinstance(error, self.give_up_on):
            return RetryVerdict("final", 0.0, Reason.GAVE_UP)
        if self.retry_on and not isinstance(error, self.retry_on):
            return RetryVerdict("final", 0.0, Reason.NOT_RETRIED)
        return RetryVerdict("retry", self._safe_delay(failures, random), "failed")

    def _safe_delay(self, failures: int, random: Callable[[], float]) -> float:
        try:
            return self.delay(failures, random)
        except BaseException:
            # The failure must be settled even if the user's function raises or calls sys.exit().
            log = _log()
            log.exception(
                "the backoff function failed; the job is retried after an exponential delay"
            )
            spare = RetryPolicy(base=self.base, maximum=self.maximum)
            return spare.delay(failures, random)


RetryPolicy.__init__ = naming_options("RetryPolicy", OF_POLICIES)(RetryPolicy.__init__)  # type: ignore[method-assign]


def _sane(error: BaseException, after: object, otherwise: float) -> float:
    try:
        return seconds_of("after", after)  # type: ignore[arg-type]  # anything can be raised
    except InvalidOption:
        name = type(error).__name__
        _log().warning("%s(after=%r) is not a duration; using %g s", name, after, otherwise)
        return otherwise


def _log() -> logging.Logger:
    # Imported at the first warning: only workers log, and producers import policies, too.
    import logging

    return logging.getLogger(__name__)
