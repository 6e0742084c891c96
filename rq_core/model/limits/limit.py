"""Limits: how much a scope takes, and both ways to write one.

Stored (in Redis, in events) a limit is ``10`` (a cap), ``none`` (no cap), or ``100/60000ms/1`` (a rate: 100 per 60 s,
1 at once). People write and read a rate in seconds: ``100/60s``, or ``100/60s/5`` with bursts of 5.

    >>> Limit.parse("100/60000ms/5")
    Limit(most=100, window_ms=60000, burst=5)
    >>> shown(read_limit("100/60s"))
    '100/60s'
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple, Self

from rq_core import errors
from rq_core.errors import InvalidOption

CAP_MAX: Final = 1_000_000_000


DECLARED: Final = "code"
"""In the place of a limit, in a change: the one that code declares."""


_STORED_RATE = re.compile(r"(\d{1,10})/(\d{1,12})ms/(\d{1,10})")


class Limit(NamedTuple):
    """How much a scope takes: ``most`` at once (None: any number), or per window if it is a rate."""

    most: int | None
    window_ms: int | None = None
    burst: int = 1
    """The number of jobs of a rate that may follow each other without a pause."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a limit. Raises ValueError for a text that is not a limit."""
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
        """The time that one job uses of a rate, in µs. None: it is not a rate, or a rate of 0 jobs."""
        return (
            None if not self.window_ms or not self.most else -(-self.window_ms * 1000 // self.most)
        )

    def latest_resume_ms(self, now_ms: int) -> int | None:
        """Return the latest moment at which a spent rate goes on (Unix ms). A later one is from before the clock went
        back, or from a slower limit."""
        return None if self.interval_us is None else now_ms + -(-self.interval_us // 1000)

    def furthest_us(self, now_ms: int) -> int | None:
        """Return the latest arrival time that a rate can have (Unix µs). A later one is also from before the clock went
        back, or from a slower limit."""
        return None if self.interval_us is None else now_ms * 1000 + self.burst * self.interval_us

    def __str__(self) -> str:
        if self.most is None:
            return "none"
        if self.window_ms is None:
            return str(self.most)
        return f"{self.most}/{self.window_ms}ms/{self.burst}"


class CapEntry(NamedTuple):
    """A field of ``caps``: a limit, its version, and whether it came from code or from a person."""

    limit: Limit
    version: int
    source: str
    """code or live."""
    was: tuple[str, ...] = ()
    """Limits that code declared before; code cannot bring them back."""
    declared: Limit | None = None
    """The limit that code declares, if a live limit is in force in its place."""
    by: str | None = None
    """The operator who set a live limit."""
    at_ms: int | None = None
    """When (Unix ms)."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an entry as cap.lua writes it. Raises ValueError."""
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


def check_limit(option: str, value: Any, *, minimum: int = 0) -> int:
    """Return ``value`` if it can be a cap. Raises InvalidOption."""
    if type(value) is not int or not minimum <= value <= CAP_MAX:
        raise InvalidOption.of(
            option, value, f"must be a whole number from {minimum} to {CAP_MAX:,}"
        )
    return value


_TYPED_RATE: Final = re.compile(r"(\d{1,10})/(\d{1,9}(?:\.\d{1,3})?)s(?:/(\d{1,10}))?")


def shown(limit: Limit) -> str:
    """Return a limit as operators write it: ``10``, ``none``, ``100/60s``, ``100/60s/5``."""
    if limit.window_ms is None or limit.most is None:
        return str(limit)
    seconds = f"{limit.window_ms / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{limit.most}/{seconds}s" + ("" if limit.burst == 1 else f"/{limit.burst}")


def read_limit(text: str) -> Limit:
    """Read a limit as people write it, or as it is stored. Raises InvalidOption."""
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
