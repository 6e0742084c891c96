"""Times and lengths of time, as people read and write them."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Final

_UNITS_MS: Final = {
    "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000,
}  # fmt: skip
_MS_DIGITS: Final = 15
"""Digits of the last ms of the year 9999, the last one that datetime has."""


def span_ms_of(text: str) -> int:
    """Read a length of time like ``90d``, as ms. A year has 365 days. Raises ValueError."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS_MS or not (number.isascii() and number.isdigit()) or len(number) > 6:
        raise ValueError(f"{text!r} is not a time span: write 90d (s, m, h, d, w or y)")
    return int(number) * _UNITS_MS[unit]


def moment_of(text: str, now: datetime) -> int:
    """Read a time as Unix ms: ``2026-11-21 10:00``; ``10:00``, the last time that it was ten; ``10m ago``;
    ``now``; or Unix ms. It is UTC if no zone is given. Raises ValueError or OverflowError."""
    if text.isascii() and text.isdigit() and len(text) <= _MS_DIGITS:
        return int(text)
    if text == "now":
        return int(now.timestamp() * 1000)
    if text.endswith(" ago"):
        return int(now.timestamp() * 1000) - span_ms_of(text.removesuffix(" ago").strip())
    if text[2:3] == ":":
        clock = time.fromisoformat(text)
        zone = clock.tzinfo or UTC
        moment = datetime.combine(now.astimezone(zone).date(), clock, zone)
        moment -= timedelta(days=moment > now)
    else:
        moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def readable(at_ms: int) -> str:
    """Unix ms as people read it, in UTC: ``2026-11-21 10:00:00.123Z``."""
    try:
        moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d}Z"
