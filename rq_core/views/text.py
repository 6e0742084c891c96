"""Formats times, durations, and texts of jobs and servers for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from rq_core.masking import masked
from rq_core.model.lib.text import printable

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
LINE_MAX: Final = 4_000
"""Maximum number of characters of a printed line. With --json, texts have no maximum."""
CELL_MAX: Final = 100
"""Maximum number of characters in a cell of a table, for a text from a job or a server."""


def span(ms: float) -> str:
    """Return a duration (ms) as text in its two largest units, like ``2 h 5 min``."""
    left = int(abs(ms) // 1000)
    words = []
    for seconds, unit in _UNITS:
        if left >= seconds:
            words.append(f"{left // seconds} {unit}")
            left %= seconds
    return " ".join(words[:2]) or "0 s"


def oldest(ms: int | None, *, exact: bool) -> str:
    """Return the age of the oldest job that was read, as text. A leading ``>=`` means that an older job may exist."""
    if ms is None:
        return "" if exact else "?"
    return span(ms) if exact else f">= {span(ms)}"


def utc(at_ms: float) -> str:
    """Return a time (Unix ms) as text, like ``2026-11-21 10:00:00 UTC``."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms:.0f} ms"


def ago(at_ms: float, now_ms: float) -> str:
    """Return how far a time (Unix ms) is from now, as text, followed by the time in UTC."""
    away = span(now_ms - at_ms)
    return f"{away} ago ({utc(at_ms)})" if at_ms <= now_ms else f"in {away} ({utc(at_ms)})"


def fit(text: object, most: int = LINE_MAX) -> str:
    """Return a text as one line without control characters, so that a terminal can show it.

    If the text has more than ``most`` characters, only its beginning and its end are returned.
    """
    whole = str(text)
    if len(whole) > most:
        half = most // 2
        whole = f"{whole[:half]} … {len(whole) - 2 * half:,} characters left out … {whole[-half:]}"
    return printable(whole)


def shortened(text: str) -> str:
    """Return a text as one printable line of at most CELL_MAX characters. The end of a longer text is cut off."""
    line = one_line(text)
    return line if len(line) <= CELL_MAX else f"{line[: CELL_MAX - 1]}…"


def one_line(text: str) -> str:
    """Return a text as one printable line, without passwords."""
    return fit(masked(" ".join(text.split())))
