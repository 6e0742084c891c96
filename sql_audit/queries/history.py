"""Reads the events of jobs and queues, and each queue's watermark: the last outbox entry that SQL has.

engine = Database("audit.db").readers
for event in history(engine, "job-1"):
    print(event.number, event.type)
"""

# ruff: noqa: S608 - statements are joined from constants of this module; values are bound

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row, TextClause, text
from sqlalchemy.exc import SQLAlchemyError

from rq_core.model.limits.scopes import unit_of
from rq_core.model.table.effects import BEGINNINGS
from rq_core.model.table.machine import Event
from sql_audit.errors import HistoryUnknown
from sql_audit.store import migrate, orphans
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.driver_errors import failure
from sql_audit.store.connection.statements import AUDIT_ID
from sql_audit.store.storable_text import read_json
from sql_audit.times import readable

_FIRST: Final = BEGINNINGS - {Event.RESTORED}
"""Types of events that begin a job's history. ``restored`` does not: a restored job has earlier events."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far the mirror has copied a queue's events to SQL: every event up to this entry, except in recorded gaps."""

    queue: str
    epoch: int | None
    number: int | None
    at_ms: int | None
    events: int
    gaps: int
    """Number of recorded breaks in the log: entry numbers are missing, Redis has another entry under a mirrored number,
    or Redis lost mirrored entries."""
    quarantined: int

    def __str__(self) -> str:
        if self.epoch is None or self.at_ms is None:
            return f"{self.queue}: nothing mirrored yet"
        known = f"{self.queue}: complete through epoch {self.epoch}, number {self.number}"
        gaps = f", with {self.gaps} recorded gap{'s' * (self.gaps != 1)}" if self.gaps else ""
        return f"{known} ({readable(self.at_ms)}){gaps}"


@dataclass(frozen=True, slots=True)
class PrunedTo:
    """The entry up to which a queue's log was last pruned. Jobs that ended up to this entry may have been removed."""

    queue: str
    epoch: int
    number: int
    cut_at_ms: int
    """Unix ms of the last event in the pruned part of the log."""
    at_ms: int
    """Unix ms at which the log was pruned."""
    by: str

    @property
    def says(self) -> str:
        return (
            f"jobs of queue {self.queue} that had ended by {readable(self.cut_at_ms)} may have been "
            f"pruned (at {readable(self.at_ms)}, by {self.by})"
        )


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One event of the log: a row of ``job_event``."""

    queue: str
    epoch: int
    seq: int
    ordinal: int
    type: str
    at_ms: int
    job_id: str | None
    claim: int | None
    worker: str | None
    """The actor that caused the event: a worker, a producer or an operator."""
    task: str | None
    detail: dict[str, Any]
    orphaned: bool = False
    """True if Redis forgot the event, so that it is not part of the history that Redis continued. Only :func:`history`
    and :func:`sql_audit.queries.event_pages.job_page_before` set this."""

    @property
    def number(self) -> str:
        """The number of the event's entry in the outbox, ``EPOCH-SEQ``."""
        return f"{self.epoch}-{self.seq}"

    @property
    def place(self) -> tuple[int, int, int]:
        """The event's position in the queue's log (epoch, seq, ordinal). Events are sorted by this position."""
        return self.epoch, self.seq, self.ordinal


def per_window(scope: str, limit: Sequence[Any]) -> str:
    """Return the limit of a rate as a text for people, such as ``90,000 tokens per 60 s``."""
    unit = unit_of(scope)
    return f"{limit[0]}{f' {unit}' if unit else ''} per {limit[1] / 1000:g} s"


def under(scopes: Any) -> str:
    """Return the limits that applied to a claim as a text for people, such as ``task=send ≤ 10``."""
    words = []
    for scope, *limit in scopes or ():
        if len(limit) >= 3:
            takes = f", takes {limit[3]:,}" if len(limit) > 3 else ""
            words.append(f"{scope} ≤ {per_window(scope, limit)}{takes}")
        else:
            cap = limit[0] if limit else None
            words.append(f"{scope} ≤ {cap if cap is not None else 'any'}")
    return ", ".join(words)


# Statements.

OF_QUEUE: Final = "(CAST(:queue AS TEXT) IS NULL OR queue = :queue)"
"""An SQL condition for statements about one queue, ``:queue``, or about all queues if ``:queue`` is null."""

_WATERMARKS = text(
    "SELECT queue, epoch, seq, at_ms, events, gaps, quarantined FROM mirror_cursor "
    f"WHERE {OF_QUEUE} ORDER BY queue"
)

EVENT_COLUMNS: Final = (
    "queue, epoch, seq, ordinal, type, at_ms, job_id, claim, worker, task, detail"
)

_PRUNED_TO = text(
    "SELECT queue, epoch, seq, cut_at_ms, at_ms, actor FROM mirror_prune p WHERE id = "
    f"(SELECT MAX(id) FROM mirror_prune m WHERE m.queue = p.queue) AND {OF_QUEUE} ORDER BY queue"
)

_HISTORY = text(
    f"SELECT {EVENT_COLUMNS} "
    f"FROM job_event WHERE job_id = :job_id AND {OF_QUEUE} ORDER BY queue, epoch, seq, ordinal"
)

BEFORE_ALL: Final = (-1, -1, -1)
"""A position before every event."""

_TAIL = text(
    f"SELECT {EVENT_COLUMNS} FROM job_event WHERE queue = :queue "
    "ORDER BY epoch DESC, seq DESC, ordinal DESC LIMIT :limit"
)

_AFTER = text(
    f"SELECT {EVENT_COLUMNS} FROM job_event WHERE queue = :queue "
    "AND (epoch, seq, ordinal) > (:epoch, :seq, :ordinal) "
    "ORDER BY epoch, seq, ordinal LIMIT :limit"
)

# Questions.


def by_job(dialect: str, statement: str) -> TextClause:
    """Return an SQL statement that finds events by job. ``{hint}`` in the statement is replaced by SQLite's INDEXED BY.

    Without the index on jobs, SQLite would read all events of the queue.
    """
    return text(statement.format(hint="INDEXED BY job_event_job " if dialect == "sqlite" else ""))


def watermarks(engine: Engine, queue: str | None = None) -> list[Watermark]:
    """Return the watermark (the last mirrored entry) of each queue, or only of ``queue``."""
    with engine.connect() as connection:
        return marks_of(connection, queue)


def watermarks_of(engine: Engine, queues: Container[str]) -> list[Watermark]:
    """Return the watermarks of ``queues``. Queues that SQL does not have are left out."""
    return [mark for mark in watermarks(engine) if mark.queue in queues]


def marks_of(connection: Connection, queue: str | None) -> list[Watermark]:
    """Return the watermark (the last mirrored entry) of each queue, or only of ``queue``, over an open connection."""
    return [Watermark(*row) for row in connection.execute(_WATERMARKS, {"queue": queue})]


def pruned_to(connection: Connection, queue: str | None = None) -> list[PrunedTo]:
    """Return, for each pruned queue, or only for ``queue``, the entry up to which its log was last pruned."""
    return [PrunedTo(*row) for row in connection.execute(_PRUNED_TO, {"queue": queue})]


def pruned_after(connection: Connection, queue: str, at_ms: int) -> PrunedTo | None:
    """Return the last prune of a queue's log if it may have removed jobs that ended at or after ``at_ms`` (Unix ms).

    Otherwise return None.
    """
    return next((cut for cut in pruned_to(connection, queue) if cut.cut_at_ms >= at_ms), None)


def cut_short(engine: Engine, events: Sequence[LoggedEvent]) -> list[PrunedTo]:
    """Return the last prune of each queue in which a prune may have removed the job's earlier events.

    ``events`` are the events of one job. If the first of them in a queue does not begin a job, earlier events are
    missing.
    """
    first: dict[str, str] = {}
    for event in events:
        first.setdefault(event.queue, event.type)
    headless = {queue for queue, event_type in first.items() if event_type not in _FIRST}
    with engine.connect() as connection:
        return [cut for queue in sorted(headless) for cut in pruned_to(connection, queue)]


def unknown(connection: Connection, job_id: str, queue: str | None) -> HistoryUnknown:
    """Return the error HistoryUnknown: the log has no event of the job, because the job never existed or was pruned."""
    where = "" if queue is None else f" in queue {queue!r}"
    cuts = "; ".join(cut.says for cut in pruned_to(connection, queue))
    return HistoryUnknown(job_id=job_id, where=where, pruned=f". But {cuts}" if cuts else "")


def event_of(row: Row[Any]) -> LoggedEvent:
    """Return a LoggedEvent from a row with the columns EVENT_COLUMNS."""
    columns = row._asdict()
    detail = columns.pop("detail")
    return LoggedEvent(**columns, detail=read_json(detail, dict))


def history(engine: Engine, job_id: str, queue: str | None = None) -> list[LoggedEvent]:
    """Return every event of a job, oldest first. Raise HistoryUnknown if the log has no event of the job."""
    with engine.connect() as connection:
        rows = connection.execute(_HISTORY, {"job_id": job_id, "queue": queue}).all()
        orphaned = {name: orphans.ranges(connection, name) for name in {row.queue for row in rows}}
        if not rows:
            raise unknown(connection, job_id, queue)
    return [
        replace(event, orphaned=orphans.in_any((event.epoch, event.seq), orphaned[event.queue]))
        for event in map(event_of, rows)
    ]


def queue_tail(engine: Engine, queue: str, limit: int = 20) -> list[LoggedEvent]:
    """Return the last ``limit`` events of a queue, oldest first."""
    with engine.connect() as connection:
        rows = connection.execute(_TAIL, {"queue": queue, "limit": limit}).all()
    return [event_of(row) for row in reversed(rows)]


def after(
    engine: Engine, queue: str, place: tuple[int, int, int], limit: int = 1000
) -> list[LoggedEvent]:
    """Return up to ``limit`` events of a queue after ``place`` (epoch, seq, ordinal), oldest first."""
    epoch, seq, ordinal = place
    where = {"queue": queue, "epoch": epoch, "seq": seq, "ordinal": ordinal}
    with engine.connect() as connection:
        return [event_of(row) for row in connection.execute(_AFTER, {**where, "limit": limit})]


def follow(
    engine: Engine, queue: str | None, last: dict[str, tuple[int, int, int]]
) -> Iterator[list[LoggedEvent]]:
    """Yield the new events of all queues, or of ``queue``, without end.

    Each step yields a list of at most 1,000 events per queue; the list may be empty. ``last`` is the place after which
    to begin, by queue. A queue that is not in ``last`` is read from its beginning.
    """
    places = dict(last)
    while True:
        fresh = []
        for mark in watermarks(engine, queue):
            of_queue = after(engine, mark.queue, places.get(mark.queue, BEFORE_ALL))
            if of_queue:
                places[mark.queue] = of_queue[-1].place
                fresh += of_queue
        yield fresh


def audit_id(database: Database) -> str:
    """Return the random id of an audit database. Redis stores this id for each queue that the database mirrors."""
    with database.readers.connect() as connection:
        return str(connection.execute(AUDIT_ID).scalar_one())


def history_of(url: str, job_id: str, queue: str | None) -> list[LoggedEvent]:
    """Return a job's events, oldest first, from the database at ``url``. Job handles call this function. ``queue`` None
    means all queues.

    The list is empty if the mirror has not written the job yet, or if a prune has removed the job. Raise AuditError if
    the database does not answer or has no log.
    """
    database = Database(url)
    try:
        migrate.check_current(database)
        return history(database.readers, job_id, queue)
    except HistoryUnknown:
        return []
    except SQLAlchemyError as error:
        raise failure(database.url, error) from error
    finally:
        database.close()
