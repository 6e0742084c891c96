"""Parses times and time spans such as ``10m ago`` and ``90d``."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Final

_UNITS_MS: Final = {
    "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000,
}  # fmt: skip
_MS_DIGITS: Final = 15
"""Number of digits of the largest Unix ms that datetime can hold (the end of the year 9999)."""


def span_ms_of(text: str) -> int:
    """Return a time span such as ``90d`` in ms. A year has 365 days. Raises ValueError if the text is not a time
    span."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS_MS or not (number.isascii() and number.isdigit()) or len(number) > 6:
        raise ValueError(f"{text!r} is not a time span: write 90d (s, m, h, d, w or y)")
    return int(number) * _UNITS_MS[unit]


def moment_of(text: str, now: datetime) -> int:
    """Return a time in Unix ms. A time without a zone is in UTC.

    The text is one of these:

    - ``2026-11-21 10:00``
    - ``10:00``: the last moment at which clocks showed 10:00
    - ``yesterday 10:00``
    - ``10m ago`` or ``10m``
    - ``now``
    - a number of Unix ms

    Raises ValueError or OverflowError for any other text.
    """
    if text.isascii() and text.isdigit() and len(text) <= _MS_DIGITS:
        return int(text)
    now_ms = int(now.timestamp() * 1000)
    if text == "now":
        return now_ms
    span = text.removesuffix(" ago").rstrip()
    if span[-1:] in _UNITS_MS and span[:1].isdigit():
        return max(0, now_ms - span_ms_of(span))
    day, of_clock, clock_text = text.removesuffix(" UTC").rpartition(" ")
    if clock_text[1:2] == ":":
        clock_text = f"0{clock_text}"
    if clock_text[2:3] == ":" and day in ("", "today", "yesterday"):
        clock = time.fromisoformat(clock_text)
        zone = clock.tzinfo or UTC
        moment = datetime.combine(now.astimezone(zone).date(), clock, zone)
        moment -= timedelta(days=day == "yesterday" or (not day and moment > now))
    else:
        moment = datetime.fromisoformat(f"{day}{of_clock}{clock_text}")
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
