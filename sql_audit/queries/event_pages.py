"""Pages of the events of a queue or of a job, in the order of the log, and the last time at which each schedule was
due.

Each read has a bound, however long the log is.
"""

# ruff: noqa: S608 - statements are joined from constants; values are bound

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Engine, Row, text

from sql_audit.queries.history import EVENT_COLUMNS, LoggedEvent, by_job, event_of
from sql_audit.store import orphans
from sql_audit.store.schema.tables import TICK_NAME

Place = tuple[int, int, int]
"""An event's position in its queue's log: the number of its outbox entry (epoch, seq), and its index in the entry."""
SCHEDULES_MAX: Final = 300
"""Maximum number of schedules of a queue whose last event ``ticked`` is read: those that come first by name."""

_OLDER: Final = text(
    f"SELECT {EVENT_COLUMNS} FROM job_event WHERE queue = :queue AND (epoch, seq, ordinal) < (:epoch, :seq, :ordinal) "
    "ORDER BY epoch DESC, seq DESC, ordinal DESC LIMIT :most"
)
_NEWER: Final = text(
    f"SELECT {EVENT_COLUMNS} FROM job_event WHERE queue = :queue AND (epoch, seq, ordinal) > (:epoch, :seq, :ordinal) "
    "ORDER BY epoch, seq, ordinal LIMIT :most"
)
_OF_JOB: Final = (
    f"SELECT {EVENT_COLUMNS} FROM job_event {{hint}}WHERE job_id = :job_id AND queue = :queue "
    "AND (epoch, seq) <= (:epoch, :seq) AND (epoch, seq, ordinal) < (:epoch, :seq, :ordinal) "
    "ORDER BY epoch DESC, seq DESC, ordinal DESC LIMIT :most"
)
_TICKED: Final = (
    f"SELECT {TICK_NAME} FROM job_event WHERE queue = :queue AND type = 'ticked' AND {TICK_NAME}"
)
_LAST: Final = (
    f"(SELECT {{}} FROM job_event WHERE queue = :queue AND type = 'ticked' AND {TICK_NAME} = names.name "
    # By time, as the index is. Without an order, SQLite would read the whole queue instead, as it does for a join.
    "ORDER BY at_ms DESC LIMIT 1)"
)
_LAST_TICKS: Final = text(
    f"WITH RECURSIVE names (number, name) AS (SELECT 1, ({_TICKED} > '' ORDER BY 1 LIMIT 1) UNION ALL "
    f"SELECT number + 1, ({_TICKED} > names.name ORDER BY 1 LIMIT 1) FROM names "
    "WHERE names.name IS NOT NULL AND number < :most) "
    f"SELECT name, {_LAST.format('at_ms')} AS at_ms, {_LAST.format('job_id')} AS job_id, "
    f"{_LAST.format('detail')} AS detail FROM names WHERE name IS NOT NULL"
)
"""A query for the last event ``ticked`` of each schedule. It steps through the index from each name to the next."""
END: Final[Place] = (2**62, 2**62, 2**31)
"""A position after every event."""


@dataclass(frozen=True, slots=True)
class EventPage:
    """Consecutive events, oldest first, and whether the log has older or newer ones."""

    events: Sequence[LoggedEvent]
    older: bool
    """True if the log has, or may have, events before the first event of the page."""
    newer: bool
    """True if the log has, or may have, events after the last event of the page."""


def page_before(engine: Engine, queue: str, place: Place, limit: int) -> EventPage:
    """Return the last ``limit`` events of a queue before ``place``."""
    rows = _read(engine, _OLDER, queue, place, limit + 1)
    events = [event_of(row) for row in reversed(rows[:limit])]
    return EventPage(events, older=len(rows) > limit, newer=place != END)


def page_after(engine: Engine, queue: str, place: Place, limit: int) -> EventPage:
    """Return the first ``limit`` events of a queue after ``place``."""
    rows = _read(engine, _NEWER, queue, place, limit + 1)
    events = [event_of(row) for row in rows[:limit]]
    return EventPage(events, older=place > (0, 0, 0), newer=len(rows) > limit)


def job_page_before(engine: Engine, job_id: str, queue: str, place: Place, limit: int) -> EventPage:
    """Return the last ``limit`` events of a job before ``place``, including events that Redis forgot."""
    rows = _read(
        engine, by_job(engine.dialect.name, _OF_JOB), queue, place, limit + 1, job_id=job_id
    )
    events = [event_of(row) for row in reversed(rows[:limit])]
    if events:
        with engine.connect() as connection:
            forgotten = orphans.ranges(connection, queue)
        events = [
            replace(each, orphaned=orphans.in_any((each.epoch, each.seq), forgotten))
            for each in events
        ]
    return EventPage(events, older=len(rows) > limit, newer=place != END)


def last_ticks(engine: Engine, queue: str) -> list[dict[str, Any]]:
    """Return the last ``ticked`` event of each of a queue's schedules, for at most SCHEDULES_MAX schedules: when the
    schedule was due, or an operator asked for a run, and the outcome.
    """
    with engine.connect() as connection:
        rows = connection.execute(_LAST_TICKS, {"queue": queue, "most": SCHEDULES_MAX}).all()
    return [_tick(row) for row in rows]


def _tick(row: Row[Any]) -> dict[str, Any]:
    """Return the columns that a list of schedules shows, from a row of the view schedule_tick."""
    told = json.loads(row.detail)
    wanted = ("nominal_ms", "due_ms", "outcome", "missed", "held_by")
    late_ms = row.at_ms - told["due_ms"]
    found = {"name": row.name, "at_ms": row.at_ms, "late_ms": late_ms, "job_id": row.job_id}
    return found | {name: told.get(name) for name in wanted}


def _read(
    engine: Engine, statement: Any, queue: str, place: Place, most: int, **more: str
) -> Sequence[Row[Any]]:
    epoch, seq, ordinal = place
    asked = {"queue": queue, "epoch": epoch, "seq": seq, "ordinal": ordinal, "most": most, **more}
    with engine.connect() as connection:
        return connection.execute(statement, asked).all()
