"""Formats the times of the log for people."""

from __future__ import annotations

from datetime import UTC, datetime


def readable(at_ms: int) -> str:
    """Return Unix ms as a date and a time in UTC, such as ``2026-11-21 10:00:00.123Z``. Return ``N ms`` if datetime
    cannot represent the time.
    """
    try:
        moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d}Z"
