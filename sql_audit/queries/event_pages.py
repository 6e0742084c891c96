"""Pages of the events of a queue or of a job, by their place in the log, and the instants of schedules.

Each read has a bound, however long the log is.
"""

# ruff: noqa: S608 - statements are joined from constants; values are bound

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Engine, Row, TextClause, text

from sql_audit.queries.history import EVENT_COLUMNS, LoggedEvent, event_of
from sql_audit.store import orphans

Place = tuple[int, int, int]
"""An event's place in its queue's log: epoch, seq, ordinal."""
TICKS_LOOKED_MAX: Final = 5_000
"""Instants of a queue, of which those of one schedule are looked for."""
CHANGES_LOOKED_MAX: Final = 2_000
"""Events of a queue that concern no job, of which changes of one schedule are looked for."""

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
_TICKS: Final = text(
    "SELECT name, version, nominal_ms, due_ms, at_ms, late_ms, outcome, missed, job_id, held_by FROM schedule_tick "
    "WHERE queue = :queue ORDER BY at_ms DESC LIMIT :most"
)
_CHANGES: Final = (
    f"SELECT {EVENT_COLUMNS} FROM job_event {{hint}}WHERE job_id IS NULL AND queue = :queue "
    "ORDER BY epoch DESC, seq DESC LIMIT :most"
)
END: Final[Place] = (2**62, 2**62, 2**31)
"""The place after every event."""


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events, oldest first."""

    events: Sequence[LoggedEvent]
    older: bool
    """Whether there are events before them."""
    newer: bool
    """Whether there are events after them."""


def page_before(engine: Engine, queue: str, place: Place, limit: int) -> EventPage:
    """Return the last events of a queue before a place."""
    rows = _read(engine, _OLDER, queue, place, limit + 1)
    events = [event_of(row) for row in reversed(rows[:limit])]
    return EventPage(events, older=len(rows) > limit, newer=place != END)


def page_after(engine: Engine, queue: str, place: Place, limit: int) -> EventPage:
    """Return the first events of a queue after a place."""
    rows = _read(engine, _NEWER, queue, place, limit + 1)
    events = [event_of(row) for row in rows[:limit]]
    return EventPage(events, older=place > (0, 0, 0), newer=len(rows) > limit)


def job_page_before(engine: Engine, job_id: str, queue: str, place: Place, limit: int) -> EventPage:
    """Return the last events of a job before a place, with those that Redis forgot."""
    rows = _read(engine, _by_job(engine, _OF_JOB), queue, place, limit + 1, job_id=job_id)
    events = [event_of(row) for row in reversed(rows[:limit])]
    if events:
        with engine.connect() as connection:
            forgotten = orphans.ranges(connection, queue)
        events = [
            replace(each, orphaned=orphans.in_any((each.epoch, each.seq), forgotten))
            for each in events
        ]
    return EventPage(events, older=len(rows) > limit, newer=place != END)


def last_ticks(
    engine: Engine, queue: str, name: str | None, limit: int
) -> tuple[list[dict[str, Any]], int | None]:
    """Return the last instants of a queue's schedules, or of the schedule ``name``, newest first, and the moment back
    to which they were looked for (Unix ms); None: to the beginning of the log."""
    most = limit if name is None else TICKS_LOOKED_MAX
    with engine.connect() as connection:
        found = connection.execute(_TICKS, {"queue": queue, "most": most}).mappings().all()
    rows = [dict(each) for each in found if name in (None, each["name"])]
    whole = len(found) < most and len(rows) <= limit
    back_to = (
        None if whole else rows[limit - 1]["at_ms"] if len(rows) > limit else found[-1]["at_ms"]
    )
    return rows[:limit], back_to


def schedule_changes(engine: Engine, queue: str, name: str, limit: int) -> list[LoggedEvent]:
    """Return the last changes of a schedule, newest first, among the last events of its queue that concern no job."""
    with engine.connect() as connection:
        asked = {"queue": queue, "most": CHANGES_LOOKED_MAX}
        rows = connection.execute(_by_job(engine, _CHANGES), asked).all()
        found = [
            each
            for each in map(event_of, rows)
            if each.type == "schedule_changed" and each.detail.get("name") == name
        ]
    return found[:limit]


def _by_job(engine: Engine, statement: str) -> TextClause:
    """Return a statement that finds events by the index on their job. SQLite would read all events of the queue."""
    hint = "INDEXED BY job_event_job " if engine.dialect.name == "sqlite" else ""
    return text(statement.format(hint=hint))


def _read(
    engine: Engine, statement: Any, queue: str, place: Place, most: int, **more: str
) -> Sequence[Row[Any]]:
    epoch, seq, ordinal = place
    asked = {"queue": queue, "epoch": epoch, "seq": seq, "ordinal": ordinal, "most": most, **more}
    with engine.connect() as connection:
        return connection.execute(statement, asked).all()
