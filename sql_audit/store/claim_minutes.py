"""Counts claims by the minute in which they ended, in the table ``claim_minute``.

Without this table, a query such as "how many claims of a task succeeded each minute" would read all claims. In the
transaction of a batch, the mirror counts the claims that end in the batch. After any other change of claims, the
minutes of these claims are counted again.
"""

# ruff: noqa: S608 - statements are joined from names of this module

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import Connection, text

from sql_audit.store.connection.statements import COUNT_CLAIMS
from sql_audit.store.job_rows import (
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

MINUTE_MS: Final = 60_000

_FORGET: Final = text("DELETE FROM claim_minute WHERE queue = :queue AND minute_ms >= :since")
_COUNT_AGAIN: Final = text(
    f"{COUNT_CLAIMS} AND queue = :queue AND ended_at_ms >= :since GROUP BY 1, 2, 3, 4, 5, 6"
)

_KEY: Final = "outcome, minute_ms, task, worker, error_type"
_SUMS: Final = ("claims", "waited_ms", "waited_max_ms", "ran_ms", "ran_max_ms")


def _differing() -> str:
    stored = ", ".join(f"{name} AS told_{name}, 0 AS is_{name}" for name in _SUMS)
    made = ", ".join(
        f"0 AS told_{name}, {expression} AS is_{name}"
        for name, expression in zip(
            _SUMS,
            (
                "COUNT(*)",
                "COALESCE(SUM(waited_ms), 0)",
                "COALESCE(MAX(waited_ms), 0)",
                "COALESCE(SUM(ran_ms), 0)",
                "COALESCE(MAX(ran_ms), 0)",
            ),
            strict=True,
        )
    )
    # Each key has one row of either side, and the other side has 0, so the maximum is the value of the row.
    both = ", ".join(
        f"MAX(told_{name}) AS told_{name}, MAX(is_{name}) AS is_{name}" for name in _SUMS
    )
    other = " OR ".join(f"told_{name} <> is_{name}" for name in _SUMS)
    fewer = " OR ".join(f"told_{name} < is_{name}" for name in _SUMS)
    return (
        f"SELECT {_KEY}, told_claims, is_claims FROM (SELECT {_KEY}, {both} FROM ("
        f"SELECT {_KEY}, {stored} FROM claim_minute WHERE queue = :queue AND minute_ms >= :since "
        "UNION ALL SELECT outcome, ended_at_ms - ended_at_ms % 60000, COALESCE(task, ''), "
        f"COALESCE(worker, ''), COALESCE(error_type, ''), {made} FROM job_attempt "
        "WHERE queue = :queue AND outcome IS NOT NULL AND ended_at_ms >= :since "
        f"GROUP BY 1, 2, 3, 4, 5) AS rows_of_both GROUP BY {_KEY}) AS compared "
        f"WHERE (minute_ms >= :whole_since AND ({other})) OR {fewer} OR told_claims < 1 OR minute_ms % 60000 <> 0 "
        "ORDER BY minute_ms, outcome, task, worker, error_type LIMIT 20"
    )


_DIFFERING: Final = text(_differing())

Row = tuple[str, int, str, str, str, str, int, int, int, int, int]
"""A row of ``claim_minute``: outcome, minute (Unix ms), queue, task, worker and error type; the number of claims; and
the sum and the maximum (ms) of their waits and of their runs."""


def minute_rows(attempts: Iterable[Attempt]) -> list[Row]:
    """Count the ended claims of a batch by the minute. Return the rows to add to ``claim_minute``."""
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


def differing(
    connection: Connection, queue: str, *, since_ms: int, whole_since_ms: int
) -> list[tuple[int, str]]:
    """Compare ``claim_minute`` with ``job_attempt``. Return the first 20 differences: each is a minute (Unix ms) and a
    sentence.

    Minutes before ``since_ms`` are not compared. Minutes before ``whole_since_ms`` may count more claims than
    ``job_attempt`` has, because claims may have been pruned, but never fewer.
    """
    since = since_ms - since_ms % MINUTE_MS if since_ms else -(2**63)
    values = {"queue": queue, "since": since, "whole_since": whole_since_ms}
    return [
        (
            row.minute_ms,
            f"the minute counts {row.told_claims} claims {row.outcome} of task {row.task or '-'} by "
            f"{row.worker or '-'}{f' with {row.error_type}' if row.error_type else ''}, there are {row.is_claims}"
            + (", and other times" if row.told_claims == row.is_claims else ""),
        )
        for row in connection.execute(_DIFFERING, values)
    ]


def count_again(connection: Connection, queue: str, since_ms: int) -> None:
    """Replace the counts of a queue's claims for the minute of ``since_ms`` (Unix ms) and all later minutes."""
    values: dict[str, Any] = {"queue": queue, "since": since_ms - since_ms % MINUTE_MS}
    connection.execute(_FORGET, values)
    connection.execute(_COUNT_AGAIN, values)
