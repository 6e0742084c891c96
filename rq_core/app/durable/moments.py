"""Converts the times of sleeps and waits from Python to text for the Lua script that saves sleeps and waits."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from rq_core.errors import SECONDS_MAX, InvalidStep

_HOUR: Final = 3_600


def ahead(name: str, seconds: Any) -> str:
    """Convert a duration (seconds, or a timedelta) to text: ``+`` and its milliseconds. None becomes an empty text.

    Raises InvalidStep.
    """
    if seconds is None:
        return ""
    said = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    # NaN is not less than or equal to any number.
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said <= SECONDS_MAX:
        raise InvalidStep(
            step=name, why=f"{seconds!r} are no seconds (or timedelta) from 0 to {SECONDS_MAX:,}"
        )
    return f"+{round(said * 1000)}"


def moment(
    name: str,
    seconds: Any,
    hours: Any,
    until: Any,
) -> str:
    """Convert the end of a sleep to text: Unix ms, or ``+`` and the milliseconds from now.

    The caller gives exactly one of ``seconds``, ``hours`` and ``until``. Raises InvalidStep for none or several of
    them, and for an invalid time.
    """
    if [seconds, hours, until].count(None) != 2:
        raise InvalidStep(step=name, why="it takes one of seconds, hours=… and until=…")
    if until is not None:
        if not isinstance(until, datetime) or until.tzinfo is None:
            raise InvalidStep(step=name, why="until=… must be a datetime with a time zone")
        return str(max(0, round(until.timestamp() * 1000)))
    if hours is not None and isinstance(hours, int | float):
        return ahead(name, hours * _HOUR)
    return ahead(name, seconds if hours is None else hours)
