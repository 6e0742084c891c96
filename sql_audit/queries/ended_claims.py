"""Lists the claims that ended, newest first. Every read uses an index, and is bounded in rows and in time.

The list is merged from several queries, its parts. For failed claims, there is a part for each outcome, read by an
index on (outcome, end). If successes are wanted, there is a part for each class of durations, read by an index on
(class of duration, end).

Conditions without an index are checked row by row. So a page may reach its bound before it finds a match. It then says
up to which time it read, and where the next page begins.
"""

# ruff: noqa: S608 - statements are joined from constants; values are bound

from __future__ import annotations

import functools
import heapq
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine, Row, TextClause, text

from sql_audit.store.schema.duration_classes import SPAN, SPANS_MS
from sql_audit.store.schema.tables import OUTCOMES

LOOKED_MAX: Final = 5_000
"""Maximum number of claims that one page reads."""
WITHIN_MS: Final = 500
"""Milliseconds after which a page reads no further."""
FIRST_STEP: Final = 100
STEP: Final = 500
"""Maximum number of claims that one statement reads. The list is merged from several queries, and the first statement
of each reads FIRST_STEP claims."""
SUCCEEDED: Final = "succeeded"
FAILED: Final = tuple(outcome for outcome in OUTCOMES if outcome != SUCCEEDED)
_COLUMNS: Final = (
    "queue, job_id, fence, claim, task, worker, ended_at_ms, waited_ms, ran_ms, outcome, error_type, error_message, "
    "scopes"
)


class Place(NamedTuple):
    """The position of a claim in the list of ended claims. The next page begins after it."""

    ended_at_ms: int
    job_id: str
    fence: str
    queue: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """The conditions that a listed claim must fulfil. None or an empty text sets no condition."""

    outcomes: Sequence[str] = FAILED
    queue: str | None = None
    """Only claims of this queue. It must be given if successes are asked for."""
    task: str = ""
    error: str = ""
    """Only claims that ended with this type of error."""
    worker: str = ""
    scope: str = ""
    since_ms: int = 0
    until_ms: int | None = None
    """Only claims that ended before this time (Unix ms)."""

    def __call__(self, row: Row[Any]) -> bool:
        """Return whether a row of ``job_attempt`` fulfils the conditions."""
        return (
            row.outcome in self.outcomes
            and self.queue in (None, row.queue)
            and self.task in ("", row.task)
            and self.error in ("", row.error_type)
            and self.worker in ("", row.worker)
            and (not self.scope or self.scope in _scopes(row.scopes))
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """A page of the list of ended claims, and the place where the next page begins."""

    rows: list[dict[str, Any]]
    looked: int
    """Number of claims that were read to make the page, matching or not."""
    next: Place | None
    """The position after which the next page begins; None: there are no more claims."""


def ended_claims(
    engine: Engine,
    wanted: Wanted,
    *,
    after: Place | None = None,
    limit: int = 100,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """Return a page of the claims that ended, newest first. ``after`` is the position after which the page begins.

    The page ends after ``limit`` claims, LOOKED_MAX rows or WITHIN_MS. Each of the merged queries reads at least once,
    so every page gets further than the one before. Raises ValueError if successes are wanted without a queue.
    """
    budget = _Budget(clock() + WITHIN_MS / 1000, clock)
    found: list[dict[str, Any]] = []
    last: Row[Any] | None = None
    with engine.connect() as connection:
        parts = [
            _part(connection, statement, asked, budget)
            for statement, asked in _statements(engine.dialect.name, wanted, after)
        ]
        for row in heapq.merge(*parts, key=_place, reverse=True):
            if budget.spent or len(found) == limit:
                break
            last = row
            if wanted(row):
                found.append(row._asdict())
        else:
            if not budget.spent:
                return Ended(found, budget.looked, None)
    return Ended(found, budget.looked, after if last is None else _place(last))


@dataclass(slots=True)
class _Budget:
    """Limits the work for one page: counts the rows that were read, and knows until when the page may read."""

    until: float
    clock: Callable[[], float]
    looked: int = 0
    spent: bool = field(default=False)
    """True if one of the merged queries was stopped by the limits. The log may then have further claims after the
    page's last one."""

    def spend(self) -> bool:
        """Return whether a limit is reached: LOOKED_MAX rows were read, or the time is over. Store the answer in
        ``spent``.
        """
        self.spent = self.looked >= LOOKED_MAX or self.clock() >= self.until
        return self.spent


def _part(
    connection: Connection, statement: TextClause, asked: Mapping[str, Any], budget: _Budget
) -> Iterator[Row[Any]]:
    """Yield the claims of one of the merged queries, newest first, until there are no more or the limits of the page
    are reached.
    """
    step, place = FIRST_STEP, dict(asked)
    while True:
        rows = connection.execute(statement, {**place, "most": step}).all()
        budget.looked += len(rows)
        yield from rows
        if len(rows) < step or budget.spend():
            return
        place |= _place(rows[-1])._asdict()
        step = min(STEP, max(1, LOOKED_MAX - budget.looked))


def _statements(
    dialect: str, wanted: Wanted, after: Place | None
) -> Iterator[tuple[TextClause, dict[str, Any]]]:
    """Yield an SQL statement and its values for each of the queries from which the list is merged."""
    # Text is compared as Python compares it.
    as_bytes = "" if dialect == "sqlite" else ' COLLATE "C"'
    order = ", ".join(
        f"{name}{as_bytes if name != 'ended_at_ms' else ''}" for name in Place._fields
    )
    newest = ", ".join(f"{each} DESC" for each in order.split(", "))
    until = "" if wanted.until_ms is None else "AND ended_at_ms < :until "
    behind = (
        f"AND ended_at_ms <= :ended_at_ms AND ({order}) < (:ended_at_ms, :job_id, :fence, :queue) "
    )

    def part(condition: str, **values: Any) -> tuple[TextClause, dict[str, Any]]:
        statement = (
            f"SELECT {_COLUMNS} FROM job_attempt WHERE {condition} AND ended_at_ms >= :since {until}"
            f"{behind}ORDER BY {newest} LIMIT :most"
        )
        begin = after or Place(_END_OF_TIME_MS, "", "", "")
        bounds = {"since": wanted.since_ms, "until": wanted.until_ms}
        return text(statement), {**begin._asdict(), **bounds, **values}

    if SUCCEEDED not in wanted.outcomes:
        for outcome in wanted.outcomes:
            yield part(f"outcome = '{FAILED[FAILED.index(outcome)]}' AND outcome <> 'succeeded'")
        return
    if wanted.queue is None:
        raise ValueError("successes are read by queue")
    for number in range(len(SPANS_MS) + 1):
        condition = f"queue = :of_queue AND ({SPAN}) = {number} AND ended_at_ms IS NOT NULL"
        yield part(condition, of_queue=wanted.queue)


_END_OF_TIME_MS: Final = 2**62


def _place(row: Row[Any]) -> Place:
    return Place(row.ended_at_ms, row.job_id, row.fence, row.queue)


@functools.lru_cache(maxsize=1024)
def _scopes(scopes: str | None) -> list[str]:
    """Return the names of a claim's scopes, from the JSON in ``job_attempt``. Many claims have the same JSON, so the
    names are cached.
    """
    try:
        return [str(scope) for scope, *_ in json.loads(scopes or "[]")]
    except (ValueError, TypeError):
        return []
