"""Converts durations and instants. Users pass seconds, a timedelta or a datetime; Redis and SQL have whole ms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from rq_core.errors import SECONDS_MAX, InvalidOption

Duration = float | timedelta
"""A duration: a number of seconds, as in asyncio, or a timedelta."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INSTANT_MAX: Final = datetime(2286, 1, 1, tzinfo=UTC)
"""The first instant that is refused: scripts take whole numbers below 10^13 (Unix ms)."""


def instant_ms_of(option: str, value: datetime) -> int:
    """Return an instant in Unix ms, rounded up, and at least 1.

    Raises InvalidOption for the option ``option`` if the value is not a datetime, has no time zone, or is not before
    the year 2286.
    """
    given: object = value
    if not isinstance(given, datetime):
        raise InvalidOption.of(option, value, "must be a datetime")
    if given.utcoffset() is None:
        raise InvalidOption.of(
            option,
            value,
            "must have a time zone: datetime.now(UTC), or datetime(…, tzinfo=ZoneInfo(…))",
        )
    if given >= _INSTANT_MAX:
        raise InvalidOption.of(option, value, "must lie before the year 2286")
    return max(1, -((_EPOCH - given) // timedelta(milliseconds=1)))


def seconds_of(
    option: str, value: Duration, *, minimum: float = 0.0, maximum: int = SECONDS_MAX
) -> float:
    """Return a duration in seconds.

    Raises InvalidOption for the option ``option`` if the value is not a duration from ``minimum`` to ``maximum``
    seconds.
    """
    seconds: object = value.total_seconds() if isinstance(value, timedelta) else value
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        # Not a number is not between anything.
        or not minimum <= seconds <= maximum
    ):
        raise InvalidOption.of(
            option, value, f"must be seconds (or a timedelta) from {minimum:g} to {maximum:,}"
        )
    return float(seconds)


def ms_of(option: str, value: Duration, *, minimum: float = 0.0, maximum: int = SECONDS_MAX) -> int:
    """Return a duration in whole ms. A duration above 0 becomes at least 1 ms.

    ``minimum`` and ``maximum`` are in seconds. Raises InvalidOption as :func:`seconds_of` does.
    """
    seconds = seconds_of(option, value, minimum=minimum, maximum=maximum)
    return max(round(seconds * 1000), 1) if seconds > 0 else 0
