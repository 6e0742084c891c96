"""Limits: the number of jobs that a scope (a group of jobs) admits, and the two ways to write a limit.

Redis and events store a limit as ``10`` (a cap), ``none`` (no cap), or ``100/60000ms/1`` (a rate: 100 per 60 s, 1 at
once). Operators write and read a rate in seconds: ``100/60s``, or ``100/60s/5`` with bursts of 5.

    >>> Limit.parse("100/60000ms/5")
    Limit(most=100, window_ms=60000, burst=5)
    >>> shown(read_limit("100/60s"))
    '100/60s'
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple, Self

from rq_core import errors
from rq_core.errors import InvalidOption

CAP_MAX: Final = 1_000_000_000
PAUSE_MAX_MS: Final = 86_400_000
"""Longest pause of a scope, in ms."""
FOREVER_MS: Final = 10**13 - 1
"""The end (Unix ms) that Redis stores for a pause without an end. Such a pause lasts until an operator resumes the
scope."""
LATEST_MS: Final = 10**15
"""The greatest theoretical arrival time that a rate may have (Unix ms); ``lua/include/caps/costs.lua`` has the same
bound."""


DECLARED: Final = "code"
"""The word that an operator passes in place of a limit to restore the limit that code declares."""


_STORED_RATE = re.compile(r"(\d{1,10})/(\d{1,12})ms/(\d{1,10})")


class Limit(NamedTuple):
    """The number of jobs that a scope admits. A cap admits ``most`` jobs at once (None: any number). A rate admits
    ``most`` jobs per ``window_ms``."""

    most: int | None
    window_ms: int | None = None
    burst: int = 1
    """Number of jobs, or units, that a rate admits at once, without time between them."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a limit as Redis stores it. Raises ValueError if the text is not a limit."""
        if text == "none":
            return cls(None)
        rate = _STORED_RATE.fullmatch(text)
        if rate and int(rate[2]) and int(rate[3]):
            return cls(*map(int, rate.groups()))
        if not re.fullmatch(r"\d{1,10}", text):
            raise ValueError(text)
        return cls(int(text))

    @property
    def interval_us(self) -> int | None:
        """Microseconds between two jobs of a rate: the window divided by the number of jobs. None for a cap, and for a
        rate of 0 jobs."""
        return (
            None if not self.window_ms or not self.most else -(-self.window_ms * 1000 // self.most)
        )

    def latest_resume_ms(self, now_ms: int) -> int | None:
        """Return the latest time (Unix ms) at which an exhausted rate can admit jobs again; None for a cap, and for a
        rate of 0 jobs.

        If Redis has a later time, that time is wrong by now: it was written before the clock was set back, or while a
        slower limit was in force.
        """
        return None if self.interval_us is None else now_ms + -(-self.interval_us // 1000)

    def furthest_us(self, now_ms: int) -> int | None:
        """Return the latest theoretical arrival time (Unix µs) that a rate can have; None for a cap, and for a rate of
        0 jobs.

        If Redis has a later time, that time is wrong by now: it was written before the clock was set back, or while a
        slower limit was in force.
        """
        return None if self.interval_us is None else now_ms * 1000 + self.burst * self.interval_us

    def __str__(self) -> str:
        if self.most is None:
            return "none"
        if self.window_ms is None:
            return str(self.most)
        return f"{self.most}/{self.window_ms}ms/{self.burst}"


class Spent(NamedTuple):
    """A parsed value of the key ``rates``: how much of a rate is in use. A rate has a value of this form if it counts a
    unit or was paused. ``lua/include/caps/costs.lua`` writes the value.
    """

    arrival_us: int
    """The theoretical arrival time (Unix µs): until then the rate is in use."""
    rest: int
    """The part of the arrival time below 1 µs, as the numerator of a fraction. The denominator is the limit's
    ``most``."""
    limit: str
    """The limit under which the arrival time was computed, as text."""
    at_ms: int
    """Unix ms at which the value was written."""
    paused_ms: int | None = None
    """Unix ms until which the scope is paused; None: the scope is not paused."""
    paused_by: str | None = None
    """The operator who paused the scope. None: a handler paused the scope, or the scope is not paused."""

    @classmethod
    def at(cls, arrival_ms: float, limit: Limit) -> Self:
        """Return a value for a rate when only the rate's arrival time (Unix ms) is known."""
        return cls(round(arrival_ms * 1000), 0, str(limit), 0)

    @property
    def expires_ms(self) -> int:
        """Unix ms from which on the rate is not in use and its pause is over. The value may then be removed."""
        from_us = self.arrival_us
        if self.paused_ms is not None:
            limit = Limit.parse(self.limit)
            ahead = (limit.burst - 1) * (limit.window_ms or 0) * 1000 // (limit.most or 1)
            from_us = max(from_us, self.paused_ms * 1000 + ahead)
        return -(-from_us // 1000)

    def __str__(self) -> str:
        until = "" if self.paused_ms is None else f" until={self.paused_ms}"
        until += "" if self.paused_by is None else f" by={self.paused_by}"
        return f"{self.arrival_us}+{self.rest} {self.limit} {self.at_ms}{until}"


_SPENT: Final = re.compile(
    r"(\d{1,18})\+(\d{1,10}) (\d{1,10}/0*[1-9]\d{0,11}ms/\d{1,10}) (\d{1,15})"
    r"(?: until=(\d{1,15})(?: by=(\S{1,128}))?)?"
)


def read_spent(text: str) -> Spent | None:
    """Parse a value of the key ``rates`` that has the form of :class:`Spent`; None for any other text."""
    found = _SPENT.fullmatch(text)
    if found is None:
        return None
    paused = None if found[5] is None else int(found[5])
    return Spent(int(found[1]), int(found[2]), found[3], int(found[4]), paused, found[6])


class CapEntry(NamedTuple):
    """A parsed field of the key ``caps``: a limit, its version, and who set it."""

    limit: Limit
    version: int
    source: str
    """``code``: code declared the limit. ``live``: an operator set it."""
    was: tuple[str, ...] = ()
    """The limits, as text, that code declared before the present limit. Code cannot set them again."""
    declared: Limit | None = None
    """The limit that code declares, if an operator has set another limit, which is in force now."""
    by: str | None = None
    """The operator who set the limit; None if code declared it."""
    at_ms: int | None = None
    """Unix ms at which the operator set the limit; None if code declared it."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a field of ``caps``, as cap.lua writes it. Raises ValueError or KeyError if the text is not a field."""
        head, *rest = text.split()
        facts = dict(part.partition("=")[::2] for part in rest)
        was, declared, at_ms = map(facts.get, ("was", "code", "at"))
        return cls(
            Limit.parse(head),
            int(facts["version"]),
            facts["from"],
            tuple(was.split(",")) if was else (),
            Limit.parse(declared) if declared else None,
            facts.get("by"),
            int(at_ms) if at_ms else None,
        )


def is_endless(until_ms: int) -> bool:
    """Return whether a pause that ends at ``until_ms`` (Unix ms) lasts until an operator resumes the scope.

    Redis stores the end FOREVER_MS for such a pause, or an earlier time if the clock was set back meanwhile.
    """
    return until_ms > FOREVER_MS // 2


def check_limit(option: str, value: Any, *, minimum: int = 0) -> int:
    """Return ``value`` if it is a whole number from ``minimum`` to CAP_MAX. Raises InvalidOption otherwise."""
    if type(value) is not int or not minimum <= value <= CAP_MAX:
        raise InvalidOption.of(
            option, value, f"must be a whole number from {minimum} to {CAP_MAX:,}"
        )
    return value


_TYPED_RATE: Final = re.compile(r"(\d{1,10})/(\d{1,9}(?:\.\d{1,3})?)s(?:/(\d{1,10}))?")


def shown(limit: Limit) -> str:
    """Return a limit in the form that operators write: ``10``, ``none``, ``100/60s``, ``100/60s/5``."""
    if limit.window_ms is None or limit.most is None:
        return str(limit)
    seconds = f"{limit.window_ms / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{limit.most}/{seconds}s" + ("" if limit.burst == 1 else f"/{limit.burst}")


def read_limit(text: str) -> Limit:
    """Parse a limit in the form that operators write, or in the form that Redis stores. Raises InvalidOption for any
    other text."""
    try:
        rate = _TYPED_RATE.fullmatch(text)
        if rate is None:
            limit = Limit.parse(text)
        else:
            window_ms = round(float(rate[2]) * 1000)
            limit = Limit(int(rate[1]), window_ms, int(rate[3] or 1))
    except ValueError:
        limit = Limit(-1)
    least = 0 if limit.window_ms is None else 1
    if (
        (limit.most is not None and not least <= limit.most <= CAP_MAX)
        or limit.window_ms == 0
        or not 1 <= limit.burst <= CAP_MAX
    ):
        raise errors.InvalidOption.of(
            "limit",
            text,
            f"must be a number from 0 to {CAP_MAX:,}, none, or a rate like 100/60s (or 100/60s/5 with"
            " bursts of 5)",
        )
    return limit


def wanted_limit(text: str) -> Limit | int | Literal["code"] | None:
    """Parse the limit that an operator wants for a scope. ``none`` becomes None, and ``code`` stays text. Raises
    InvalidOption for an invalid limit.

    A number stays a number. For a rate, a number means this number per window of the rate.
    """
    if text == DECLARED:
        return "code"
    limit = read_limit(text)
    return limit if limit.window_ms else limit.most
