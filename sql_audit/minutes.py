"""Claims counted by the minute in which they ended: ``claim_minute``.

Questions about all claims, such as how many of which task succeeded when, would otherwise read them all. A batch
counts what it ends in its own transaction; what changes claims in another way counts the minutes concerned anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import Connection, text

from sql_audit.rows import (
    CLAIM_ENDED_AT,
    CLAIM_ERROR_TYPE,
    CLAIM_OUTCOME,
    CLAIM_QUEUE,
    CLAIM_RAN,
    CLAIM_TASK,
    CLAIM_WAITED,
    CLAIM_WORKER,
    Attempt,
)
from sql_audit.statements import COUNT_CLAIMS

MINUTE_MS: Final = 60_000

_FORGET: Final = text("DELETE FROM claim_minute WHERE queue = :queue AND minute_ms >= :since")
_COUNT_AGAIN: Final = text(
    f"{COUNT_CLAIMS} AND queue = :queue AND ended_at_ms >= :since GROUP BY 1, 2, 3, 4, 5, 6"
)

Row = tuple[str, int, str, str, str, str, int, int, int, int, int]
"""A row of claim_minute: its key of six, how many, and the waits and runs: sum and longest of each."""


def counted(attempts: Iterable[Attempt]) -> list[Row]:
    """The claims of a batch that have ended, counted."""
    found: dict[tuple[str, int, str, str, str, str], list[int]] = {}
    for attempt in attempts:
        outcome, ended = attempt[CLAIM_OUTCOME], attempt[CLAIM_ENDED_AT]
        if outcome is None or ended is None:
            continue
        key = (
            outcome, ended - ended % MINUTE_MS, attempt[CLAIM_QUEUE], attempt[CLAIM_TASK] or "",
            attempt[CLAIM_WORKER] or "", attempt[CLAIM_ERROR_TYPE] or "",
        )  # fmt: skip
        waited, ran = attempt[CLAIM_WAITED] or 0, attempt[CLAIM_RAN] or 0
        sums = found.get(key)
        if sums is None:
            found[key] = [1, waited, waited, ran, ran]
        else:
            sums[0] += 1
            sums[1] += waited
            sums[3] += ran
            if waited > sums[2]:  # noqa: PLR1730 - max() is a call, for every claim
                sums[2] = waited
            if ran > sums[4]:  # noqa: PLR1730
                sums[4] = ran
    return [(*key, *sums) for key, sums in found.items()]  # type: ignore[misc]


def count_again(connection: Connection, queue: str, since_ms: int) -> None:
    """Count the claims of a queue anew that ended in the minute of ``since_ms`` or later."""
    values: dict[str, Any] = {"queue": queue, "since": since_ms - since_ms % MINUTE_MS}
    connection.execute(_FORGET, values)
    connection.execute(_COUNT_AGAIN, values)
