"""Reads Redis and SQL in the state of one moment, although a mirror writes to SQL and trims Redis meanwhile.

SQL is read first, then one snapshot of Redis, then the events that were mirrored in between. If the mirror has trimmed
events that the first read of SQL lacks, the second read of SQL finds these events, and they are applied to the jobs of
the first read. So no read has to be fast, and a busy queue can be compared like an idle queue.

If Redis and SQL cannot be compared, CannotTell gives the reason:

- SQL lacks entries that Redis has trimmed: SQL is a standby, a copy or a restored backup.
- Redis has begun an epoch that is not mirrored yet.
- The log has a gap without a later baseline.
- A break or a loss was mirrored during each try. No event of a job shows what the break or the loss changed.
"""

# ruff: noqa: S608 - statements are joined from the machine's own words; values are bound

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, text

from rq_core.connections.client import Client
from rq_core.model.events import RECORD_FIELDS, Entry, JobEvent, JobRecord, OutboxId, fold
from rq_core.model.lib.text import counted
from rq_core.model.table.machine import Event, State
from rq_core.protocol.reads.whole_queue import Snapshot
from sql_audit.mirror.projection.rebuild import intake_of
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.statements import AUDIT_ID, CURSOR
from sql_audit.store.gaps import open_gap
from sql_audit.store.job_rows import EventRow
from sql_audit.store.log_queues import given_up, says_deleted
from sql_audit.store.schema.tables import EVENT_COLUMNS, QUARANTINED

LOOKS: Final = 5
"""Maximum number of times that Redis and SQL are read. They are read again if the mirror recorded a new epoch, a gap or
a loss of data in between."""
ROWS: Final = 5_000
"""Number of rows of jobs that are read from SQL at a time."""

_LIVE: Final = text(
    "SELECT * FROM job WHERE queue = :queue AND state IN "
    f"({', '.join(repr(str(state)) for state in State)})"
).execution_options(yield_per=ROWS)
_EVENTS: Final = text(
    f"SELECT {', '.join(EVENT_COLUMNS)} FROM job_event "
    "WHERE queue = :queue AND (epoch, seq) >= (:epoch, :seq) ORDER BY epoch, seq, ordinal"
)
_BREAKS: Final = tuple(
    text(f"SELECT 1 FROM {table} WHERE queue = :queue AND batch > :batch LIMIT 1")
    for table in ("mirror_epoch", "mirror_loss")
)
_of_record: Final = itemgetter(*RECORD_FIELDS, "complete")
_TYPE: Final = EVENT_COLUMNS.index("type")
_JOB_ID: Final = EVENT_COLUMNS.index("job_id")

RawLog = Sequence[tuple[str, Mapping[str, str]]]


class CannotTell(Exception):
    """Raised if Redis and SQL cannot be compared, although both may be right. ``str()`` gives the reason."""

    def __init__(self, cursor: Row[Any], says: str) -> None:
        super().__init__(says)
        self.cursor = cursor


class QueueLost(CannotTell):
    """Raised if Redis has lost the queue. ``str()`` names the commands that record and repair the loss."""

    def __init__(self, cursor: Row[Any], says: str, alive: int) -> None:
        super().__init__(cursor, says)
        self.alive = alive
        """Number of jobs that are alive according to the log."""


class Deleted(CannotTell):
    """Raised if an operator deleted the queue: Redis does not have it, and no job of it is live in SQL."""


class Sides(NamedTuple):
    """The data of a queue in Redis and in SQL, at one moment. ``records`` has the jobs in their state after the entry
    ``upto``.
    """

    cursor: Row[Any]
    """The mirror's position: the queue's row of ``mirror_cursor``, read after Redis."""
    redis: Snapshot
    """The keys of the queue in Redis."""
    records: dict[str, JobRecord]
    """The jobs in SQL by id: those that were live at the first read, and those with later events up to the entry
    ``upto``."""
    upto: OutboxId
    events: dict[OutboxId, list[EventRow]]
    """The rows of events in SQL, by entry. Entries before the oldest entry in Redis are left out."""
    moving: set[str]
    """Ids of jobs that changed while Redis was read page by page. The mirror has already written their events to SQL
    and trimmed them in Redis."""

    @property
    def log(self) -> RawLog:
        """The entries of Redis' outbox, oldest first."""
        log: RawLog = self.redis["outbox"]
        return log

    @property
    def position(self) -> OutboxId:
        """The number of the last outbox entry that SQL has."""
        return OutboxId(self.cursor.epoch, self.cursor.seq)


def read_both(client: Client, database: Database, queue: str) -> Sides:
    """Read a queue from Redis and SQL until both reads show the same moment, and return the data of both.

    Raise CannotTell if they cannot be compared. Raise sqlalchemy.exc.NoResultFound if SQL does not have the queue.
    Raise the errors of Redis and SQL if they do not answer.
    """
    of_queue = {"queue": queue}
    for _ in range(LOOKS):
        with database.snapshot() as connection:
            ours = connection.execute(AUDIT_ID).scalar_one()
            before = connection.execute(CURSOR, of_queue).one()
            records = {record.id: record for record in _live_jobs(connection, of_queue)}
            off = None not in (before.epoch, before.seq) and given_up(
                connection, queue, before.batch, before.epoch, before.seq
            )
            deleted = off and says_deleted(connection, queue, OutboxId(before.epoch, before.seq))
        if before.epoch is None or before.seq is None:
            raise CannotTell(before, "nothing is mirrored yet")
        known = OutboxId(before.epoch, before.seq)
        redis = client.run(client.calls.reads.whole(queue))
        _refuse_other_source(before, client.prefix, redis["meta"])
        if deleted and not redis["meta"] and not records:
            raise Deleted(before, "the queue was deleted")
        _refuse_unattached(before, redis["meta"], ours, len(records), given_up=off)
        first = OutboxId.parse(redis["outbox"][0][0]) if redis["outbox"] else known
        since = min(known, first)
        with database.snapshot() as connection:
            after = connection.execute(CURSOR, of_queue).one()
            _refuse_behind(after, redis)
            broken = any(
                connection.execute(each, of_queue | {"batch": before.batch}).first()
                for each in _BREAKS
            )
            at = {"epoch": since.epoch, "seq": since.seq}
            rows = [tuple(row) for row in connection.execute(_EVENTS, of_queue | at)]
            gap = open_gap(connection, queue)
        if broken:
            continue
        if gap is not None:
            says = f"the log has a gap at {gap.at}, and Redis has not said since then what lives"
            raise CannotTell(after, says)
        upto = max(known, min(first, OutboxId(after.epoch, after.seq)))
        between = [row for row in rows if known < (row[1], row[2]) <= upto]
        if any(row[_TYPE] == QUARANTINED for row in between):
            raise CannotTell(after, f"an event between {known} and {upto} is in quarantine")
        fold_rows(records, between)
        events: dict[OutboxId, list[EventRow]] = {}
        for row in rows:
            if first <= (row[1], row[2]):
                events.setdefault(OutboxId(row[1], row[2]), []).append(row)
        begun = upto if redis.since is None else OutboxId.parse(redis.since)
        moving = {row[_JOB_ID] for row in between if begun < (row[1], row[2])} - {None}
        return Sides(after, redis, records, upto, events, moving)
    raise CannotTell(after, "epochs begin faster than both sides can be read")


def fold_rows(records: dict[str, JobRecord], rows: Iterable[EventRow]) -> None:
    """Apply rows of ``job_event``, in order, to ``records``: the states of jobs, by job id."""
    for row in rows:
        intake = intake_of(row)
        if intake is None:
            continue
        facts = {name: column[0] for name, column in intake.columns.items()}
        event = JobEvent(0, str(facts["id"]), facts)
        assert isinstance(intake.event, Event)
        entry = Entry(intake.id, intake.event, intake.at_ms or 0, intake.by or "", None, (event,))
        records[event.job_id], _ = fold(records.get(event.job_id), entry, event)


def _refuse_other_source(cursor: Row[Any], prefix: str, meta: Mapping[str, str]) -> None:
    """Raise CannotTell if SQL has the queue from another Redis or another prefix."""
    if cursor.prefix not in (None, prefix):
        raise CannotTell(cursor, f"the queue is mirrored from prefix {cursor.prefix}")
    if cursor.stamp and meta.get("stamp", cursor.stamp) != cursor.stamp:
        says = f"the queue is mirrored from another Redis, where it has stamp {cursor.stamp}"
        raise CannotTell(cursor, says)


def _refuse_unattached(
    cursor: Row[Any], meta: Mapping[str, str], ours: str, alive: int, *, given_up: bool
) -> None:
    """Raise CannotTell if this database does not mirror the queue, and QueueLost if Redis has lost the queue.

    Without the mirror, the database lacks events: the outbox has only recent ones, or another database has the older
    ones.
    """
    if "audit" not in meta and not given_up:
        found = "made it again" if meta.get("epoch") else "has nothing of it"
        says = f"Redis has lost the queue, and {found}: by the log {counted(alive, 'job was', 'jobs were')} alive"
        raise QueueLost(
            cursor,
            f"{says}. `rq-core audit run` records the loss, then `rq-core audit restore` can put jobs back",
            alive,
        )
    if meta.get("audit") != "on":
        raise CannotTell(cursor, "the queue is not mirrored: its audit log is off")
    if meta.get("audit_id") != ours:
        says = f"the queue is mirrored into another database, {meta.get('audit_id')}"
        raise CannotTell(cursor, says)


def _refuse_behind(cursor: Row[Any], redis: Mapping[str, Any]) -> None:
    """Raise CannotTell if SQL lacks entries that Redis has trimmed, or if Redis has begun an epoch that is not
    mirrored.

    Also raise CannotTell if the queue's field ``trimmed`` in Redis is not the id of an entry.
    """
    position = OutboxId(cursor.epoch, cursor.seq)
    try:
        trimmed = OutboxId.parse(redis["meta"].get("trimmed") or "0-0")
    except ValueError:
        says = f"the fact trimmed of the queue reads {redis['meta']['trimmed']!r}, and is no entry"
        raise CannotTell(cursor, says) from None
    if trimmed > position:
        says = (
            f"this database has entries up to {position}, and Redis was trimmed up to {trimmed}: "
            "is it a standby that lags, a copy, or restored from a backup?"
        )
        raise CannotTell(cursor, says)
    log: RawLog = redis["outbox"]
    if any(OutboxId.parse(at) == position for at, _ in log):
        return
    for at, raw in log:
        if OutboxId.parse(at) > position and raw.get("type") == Event.EPOCH_STARTED:
            raise CannotTell(cursor, f"Redis has begun an epoch at {at} that is not mirrored yet")


def _live_jobs(connection: Connection, of_queue: Mapping[str, Any]) -> Iterator[JobRecord]:
    """Yield the jobs that are live in SQL. A row has more columns than a record has fields, and needs more memory, so
    few rows are read at a time."""
    words: dict[str | None, str | None] = {}
    for row in connection.execute(_LIVE, of_queue).mappings():
        record = JobRecord(row["job_id"], State(row["state"]), *_of_record(row))
        # Many jobs have the same task and priority, and the driver makes a text of its own for each row.
        record.task = words.setdefault(record.task, record.task)
        record.priority = words.setdefault(record.priority, record.priority)
        yield record
