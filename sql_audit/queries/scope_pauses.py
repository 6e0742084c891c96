"""Reads the pauses of scopes from the log: who or what paused a scope (such as the jobs of one tenant), until when, and
which failures made a breaker pause it.
"""

# ruff: noqa: S608 - statements are joined from constants; values are bound

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row, bindparam, text

from rq_core.model.limits.limit import PAUSE_MAX_MS

FAILURES_MAX: Final = 20
"""Maximum number of failures that an answer names for one pause. The last failures are named."""
PAUSES_MAX: Final = 20
"""Maximum number of pauses of one scope in an answer about a wait. The answer has the last pauses."""
RECENT_MAX: Final = 100
"""Maximum number of pauses that are read if no scopes are named."""
BEFORE_MS: Final = 30 * PAUSE_MAX_MS
"""Milliseconds before the time in question for which a query looks back: older pauses are not found. Failures and
handlers pause a scope for a day or less; an operator's pause may be longer."""

_COLUMNS: Final = (
    "queue, scope, at_ms, until_ms, resumed_at_ms, cause, who, reason, job_id, epoch, seq, ordinal"
)
_DURING: Final = text(
    f"SELECT {_COLUMNS} FROM scope_pauses WHERE queue = :queue AND scope = :scope AND at_ms >= :earliest "
    f"AND at_ms < :until ORDER BY at_ms DESC, epoch DESC, seq DESC, ordinal DESC LIMIT {PAUSES_MAX}"
)
_LAST: Final = text(
    f"SELECT {_COLUMNS} FROM scope_pauses WHERE queue = :queue AND scope IN :scopes AND at_ms >= :earliest "
    "ORDER BY at_ms DESC, epoch DESC, seq DESC, ordinal DESC LIMIT :most"
).bindparams(bindparam("scopes", expanding=True))
_RECENT: Final = text(
    f"SELECT {_COLUMNS} FROM scope_pauses WHERE queue = :queue AND at_ms >= :earliest "
    f"ORDER BY at_ms DESC, epoch DESC, seq DESC, ordinal DESC LIMIT {RECENT_MAX}"
)
_FAILURES: Final = text(
    "SELECT job_id, task, worker, failed_at_ms, error_type FROM scope_pause_failures WHERE queue = :queue "
    "AND scope = :scope AND paused_at_ms = :at_ms AND epoch = :epoch AND seq = :seq AND ordinal = :ordinal "
    f"ORDER BY failed_at_ms DESC, job_id LIMIT {FAILURES_MAX}"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A job's failure that counted when a breaker paused its scope. The message of the error is left out."""

    job_id: str
    task: str | None
    worker: str | None
    at_ms: int
    error_type: str | None


@dataclass(frozen=True, slots=True)
class ScopePause:
    """One pause of a scope (such as the jobs of one tenant). Times are Unix ms, by Redis' clock."""

    scope: str
    at_ms: int
    until_ms: int | None
    """When the pause ends by itself; None: the pause lasts until an operator resumes the scope."""
    resumed_at_ms: int | None
    """When an operator resumed the scope before the pause was over; None: no operator did."""
    cause: str | None
    """``failures``, ``handler`` or ``operator``; None: Redis has forgotten the claim that paused the scope."""
    who: str | None
    """The operator or the worker that paused the scope."""
    reason: str | None
    """The reason that the operator gave for the pause."""
    job_id: str | None
    """The job whose failure or handler paused the scope; None: an operator did."""
    failures: list[Failure] = field(default_factory=list)
    """The failures that made the breaker pause the scope, the last first, at most FAILURES_MAX. If a probe failed, only
    the probe's failure."""

    def ends_ms(self, at_most: int) -> int:
        """Return when the pause ended (Unix ms), but not later than ``at_most``."""
        return min(
            each for each in (self.until_ms, self.resumed_at_ms, at_most) if each is not None
        )

    def ms_within(self, since_ms: int, until_ms: int) -> int:
        """Return for how many ms from ``since_ms`` to ``until_ms`` (Unix ms) this pause was in force."""
        return max(0, self.ends_ms(until_ms) - max(since_ms, self.at_ms))


def pauses_during(
    connection: Connection, queue: str, scope: str, since_ms: int, until_ms: int
) -> list[ScopePause]:
    """Return the pauses of a scope that were in force at some time from ``since_ms`` to ``until_ms`` (Unix ms).

    At most PAUSES_MAX pauses are returned, the last first.
    """
    asked = {
        "queue": queue,
        "scope": scope,
        "earliest": since_ms - BEFORE_MS,
        "until": until_ms,
    }
    rows = connection.execute(_DURING, asked).all()
    return [
        _of(row, _failures(connection, row))
        for row in rows
        if _of(row, []).ms_within(since_ms, until_ms)
    ]


def ms_paused(pauses: Iterable[ScopePause], since_ms: int, until_ms: int) -> int:
    """Return for how many ms from ``since_ms`` to ``until_ms`` (Unix ms) any of these pauses of one scope was in force.
    The pauses may overlap."""
    total, seen = 0, since_ms
    for pause in sorted(pauses, key=lambda each: each.at_ms):
        total += pause.ms_within(seen, until_ms)
        seen = max(seen, min(until_ms, pause.ends_ms(until_ms)))
    return total


def last_pauses(
    engine: Engine, queue: str, scopes: Iterable[str], now_ms: int
) -> dict[str, ScopePause]:
    """Return the last pause of each of these scopes, by scope. A scope without a pause in the log is left out.

    ``now_ms`` (Unix ms): pauses that began more than BEFORE_MS earlier are not looked for.
    """
    found: dict[str, ScopePause] = {}
    wanted = list(dict.fromkeys(scopes))
    with engine.connect() as connection:
        while wanted:
            # A scope that pauses again and again hides the other scopes, so the next statement leaves that scope out.
            asked = {
                "queue": queue,
                "scopes": wanted,
                "earliest": now_ms - BEFORE_MS,
                "most": len(wanted),
            }
            rows = connection.execute(_LAST, asked).all()
            for row in rows:
                if row.scope not in found:
                    found[row.scope] = _of(row, _failures(connection, row))
            if len(rows) < len(wanted):
                break
            wanted = [scope for scope in wanted if scope not in found]
    return found


def recent_pauses(
    connection: Connection, queue: str, now_ms: int, most: int = PAUSES_MAX
) -> dict[str, ScopePause]:
    """Return, by scope, the last pause of the scopes that were paused most recently: at most ``most`` scopes.

    Only the last RECENT_MAX pauses are read, and only pauses that began at most BEFORE_MS before ``now_ms`` (Unix ms).
    """
    found: dict[str, ScopePause] = {}
    asked = {"queue": queue, "earliest": now_ms - BEFORE_MS}
    for row in connection.execute(_RECENT, asked).all():
        if row.scope not in found and len(found) < most:
            found[row.scope] = _of(row, _failures(connection, row))
    return found


def _failures(connection: Connection, pause: Row[Any]) -> list[Failure]:
    if pause.cause != "failures":
        return []
    names = ("queue", "scope", "at_ms", "epoch", "seq", "ordinal")
    rows = connection.execute(_FAILURES, {name: getattr(pause, name) for name in names}).all()
    return [Failure(*row) for row in rows]


def _of(row: Row[Any], failures: list[Failure]) -> ScopePause:
    return ScopePause(
        row.scope,
        row.at_ms,
        row.until_ms,
        row.resumed_at_ms,
        row.cause,
        row.who,
        row.reason,
        row.job_id,
        failures,
    )
