"""Counts for charts on the web page: ended claims by minute, and deaths of jobs by hour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
HOURS: Final = 24
"""Number of hours in a chart of deaths."""
SPARK_MINUTES: Final = 60
"""Number of minutes in the small chart of a queue. The large chart has twice as many."""
CHART_MINUTES: Final = 120
_FAILED: Final = frozenset({"died", "retried", "lease_expired"})


def first_minute(now_ms: int, many: int) -> int:
    """Return the first minute (Unix ms) of a chart with ``many`` minutes that ends with the present minute."""
    return (now_ms // MINUTE_MS - many + 1) * MINUTE_MS


def chart_begin(at_ms: int, now_ms: int) -> int:
    """Return the first minute (Unix ms) of a chart that has the moment ``at_ms`` in its middle.

    If that would be in the future, the chart ends with the present minute.
    """
    latest = first_minute(now_ms, CHART_MINUTES)
    return max(0, min(latest, (at_ms // MINUTE_MS - CHART_MINUTES // 2) * MINUTE_MS))


def rows_by_queue(rows: Any) -> dict[str, list[Mapping[str, Any]]]:
    """Return queue → rows of the audit log's answer; empty if the log gave no answer."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows if isinstance(rows, list) else ():
        found.setdefault(row["queue"], []).append(row)
    return found


def count_minutes(rows: Iterable[Mapping[str, Any]], since_ms: int, many: int) -> dict[str, Any]:
    """Count the claims that succeeded, failed, or ended in another way, for each of ``many`` minutes from
    ``since_ms``."""
    done, failed, other = [0] * many, [0] * many, [0] * many
    for row in rows:
        place = (row["minute_ms"] - since_ms) // MINUTE_MS
        if 0 <= place < many:
            outcome = row["outcome"]
            kind = done if outcome == "succeeded" else failed if outcome in _FAILED else other
            kind[place] += row["claims"]
    return {"since_ms": since_ms, "done": done, "failed": failed, "other": other}


def count_hours(deaths: Mapping[int, int], now_ms: int) -> dict[str, Any]:
    """Count the deaths of jobs in each of the last HOURS hours. ``deaths``: beginning of an hour (Unix ms) → number."""
    since_ms = (now_ms // HOUR_MS - HOURS + 1) * HOUR_MS
    return {
        "since_ms": since_ms,
        "died": [deaths.get(since_ms + n * HOUR_MS, 0) for n in range(HOURS)],
    }
