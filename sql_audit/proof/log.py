"""Reads a queue's log from SQL batch by batch. A batch is what the mirror wrote in one transaction, or the record of a
prune: a row of ``mirror_batch``, and the batch's rows of ``job_event``.
"""

# ruff: noqa: S608 - statements are joined from the schema's own names; values are bound

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from rq_core.model.events import OutboxId
from sql_audit.proof.epoch_starts import EpochStart
from sql_audit.store.chain import Link
from sql_audit.store.connection.database import Database
from sql_audit.store.job_rows import EventRow
from sql_audit.store.schema.tables import EVENT_COLUMNS, job_event, metadata

READ_EVENTS: Final = 20_000
"""The approximate number of events that one query reads."""

EVENTS_MAX: Final = 2**63 - 1
"""A limit for queries that must return all events: it is higher than any number of events."""

BEFORE_ALL: Final = OutboxId(-(2**63), -(2**63))
"""A number lower than any number in a row. A read begins after it, so that no row is skipped."""

_COLUMNS: Final = ", ".join(EVENT_COLUMNS)
_RANGE: Final = (
    f"SELECT {_COLUMNS} FROM job_event WHERE queue = ? AND (epoch, seq) > (?, ?) "
    "AND (epoch, seq) <= (?, ?) ORDER BY epoch, seq, ordinal LIMIT ?"
)
_BATCHES: Final = text(
    "SELECT * FROM mirror_batch WHERE queue = :queue AND batch > :batch ORDER BY batch LIMIT 500"
)
_NEXT_EPOCH: Final = text(
    "SELECT MIN(epoch) FROM job_event WHERE queue = :queue AND epoch > :epoch"
)
_FIRST_EVENT: Final = text(
    "SELECT type, detail FROM job_event "
    "WHERE queue = :queue AND epoch = :epoch AND seq = 0 AND ordinal = 0"
)
_KEPT: Final = (
    f"SELECT {_COLUMNS} FROM job_event WHERE queue = ? AND (epoch, seq, ordinal) > (?, ?, ?) "
    f"AND (epoch, seq) <= (?, ?) ORDER BY epoch, seq, ordinal LIMIT {READ_EVENTS}"
)

_QUEUES_OF_EVENTS: Final = (
    # Finds each queue from the one before it by the primary key, which begins with the queue.
    "WITH RECURSIVE known (queue) AS (SELECT MIN(queue) FROM job_event UNION ALL SELECT (SELECT MIN(queue) "
    "FROM job_event WHERE queue > known.queue) FROM known WHERE known.queue IS NOT NULL) "
    "SELECT queue FROM known WHERE queue IS NOT NULL"
)

LAST_PRUNE: Final = text("SELECT * FROM mirror_prune WHERE queue = :queue ORDER BY id DESC LIMIT 1")
"""A query for the last row of ``mirror_prune`` of a queue: the entry up to which the log was pruned, and whether the
prune is still under way."""


def tables_by_queue(connection: Connection) -> dict[str, list[str]]:
    """Return, for each queue, the names of the tables that have rows of the queue."""
    found: dict[str, list[str]] = {}
    for table in metadata.sorted_tables:
        if "queue" in table.columns:
            known = f"SELECT DISTINCT queue FROM {table.name}"
            statement = text(_QUEUES_OF_EVENTS if table is job_event else known)
            for queue in connection.execute(statement).scalars():
                found.setdefault(queue, []).append(table.name)
    return found


class LoggedBatch(NamedTuple):
    """A row of ``mirror_batch``: the contents that are hashed (``link``), and the stored hash (``head``)."""

    link: Link
    head: str


class BatchedLog:
    """Reads the log of one queue from SQL, batch by batch."""

    def __init__(self, database: Database, queue: str) -> None:
        self.database = database
        self.queue = queue
        self._after, self._number = BEFORE_ALL, BEFORE_ALL.epoch

    def begin_behind(self, after: OutboxId, number: int) -> None:
        """Begin the read after the entry ``after``, which is the last entry of the batch ``number``."""
        self._after, self._number = after, number

    def batches(
        self, last_batch: int
    ) -> Iterator[tuple[LoggedBatch, list[EventRow], list[EventRow]]]:
        """Yield each batch up to the number ``last_batch``, as a tuple: the batch, the events before it that belong to
        no batch, and the events of the batch.
        """
        after = self._after
        group: list[LoggedBatch] = []
        events = 0
        for batch in self._batch_rows(last_batch):
            group.append(batch)
            events += max(batch.link.events, 1)
            if events >= READ_EVENTS:
                yield from self._with_rows(after, group)
                after, group, events = max(after, batch.link.last), [], 0
        if group:
            yield from self._with_rows(after, group)
            after = max(after, group[-1].link.last)
        self._after = after

    def rest(self, end: OutboxId) -> list[EventRow]:
        """Return the events after the last batch that was read, up to the entry ``end``."""
        return self._rows(self._after, end, 0) if end > self._after else []

    def _with_rows(
        self, after: OutboxId, group: list[LoggedBatch]
    ) -> Iterator[tuple[LoggedBatch, list[EventRow], list[EventRow]]]:
        last = max(batch.link.last for batch in group)
        rows = self._rows(after, last, sum(batch.link.events for batch in group))
        place = 0
        for batch in group:
            begin, link = place, batch.link
            while place < len(rows) and rows[place][1:3] < link.first:
                place += 1
            middle = place
            # Most batches have the number of events that their row says: then the end is found at once.
            guess = middle + link.events
            if (
                middle < guess <= len(rows)
                and rows[guess - 1][1:3] == link.last
                and (guess == len(rows) or rows[guess][1:3] > link.last)
            ):
                place = guess
            else:
                while place < len(rows) and rows[place][1:3] <= link.last:
                    place += 1
            yield batch, rows[begin:middle], rows[middle:place]

    def _batch_rows(self, last_batch: int) -> Iterator[LoggedBatch]:
        number = self._number
        while True:
            with self.database.readers.connect() as connection:
                at = {"queue": self.queue, "batch": number}
                page = connection.execute(_BATCHES, at).mappings().all()
            for row in page:
                number = row["batch"]
                if number > last_batch:
                    return
                yield LoggedBatch(Link.of(row), row["head"])
            if not page:
                return

    def _rows(self, after: OutboxId, upto: OutboxId, expected: int) -> list[EventRow]:
        """Return the events after the entry ``after``, up to ``upto``, as plain tuples. ``expected`` is the number of
        events that should be there, as a hint for the query.
        """
        # With a small limit, PostgreSQL goes along the primary key. It would otherwise expect a ninth of all events
        # between any two bounds, and read the whole log each time.
        between = self.queue, *after, *upto
        expected = min(max(expected, 0), EVENTS_MAX - 1)
        rows = fetch(self.database, _RANGE, (*between, expected + 1))
        return (
            rows if len(rows) <= expected else fetch(self.database, _RANGE, (*between, EVENTS_MAX))
        )


def beginnings(connection: Connection, queue: str) -> list[EpochStart]:
    """Return the first event of each epoch of a queue, oldest first. Leave out epochs whose first event is missing."""
    found: list[EpochStart] = []
    epoch = BEFORE_ALL.epoch
    while True:
        at = {"queue": queue, "epoch": epoch}
        after = connection.execute(_NEXT_EPOCH, at).scalar_one()
        if after is None:
            return found
        epoch = after
        first = connection.execute(_FIRST_EVENT, {**at, "epoch": epoch}).one_or_none()
        if first is not None and first.type == "epoch_started":
            found.append(_beginning(epoch, first.detail))


def kept_rows(
    database: Database, queue: str, cut: OutboxId, connection: Connection | None = None
) -> Iterator[list[EventRow]]:
    """Yield the events that a prune left in a queue's log, up to the entry ``cut``, in lists of up to READ_EVENTS
    events.
    """
    after: tuple[int, ...] = (*BEFORE_ALL, BEFORE_ALL.seq)
    while rows := fetch(database, _KEPT, (queue, *after, *cut), connection):
        yield rows
        after = rows[-1][1:4]


def fetch(
    database: Database, statement: str, values: tuple[Any, ...], within: Connection | None = None
) -> list[EventRow]:
    """Run a query, and return its rows as plain tuples. Raise sqlalchemy.exc.DBAPIError if it fails.

    ``within`` is the connection to use; None takes one from the pool.
    """
    if database.dialect == "postgresql":
        statement = statement.replace("?", "%s")
    with contextlib.ExitStack() as stack:
        connection = within or stack.enter_context(database.readers.connect())
        driver: Any = connection.connection.driver_connection
        cursor = driver.cursor()
        try:
            cursor.execute(statement, values)
            rows: list[EventRow] = cursor.fetchall()
        except connection.dialect.loaded_dbapi.Error as error:
            raise DBAPIError(statement, None, error) from error
        finally:
            cursor.close()
    return rows


def _beginning(epoch: int, detail: str | None) -> EpochStart:
    try:
        facts = json.loads(detail or "{}")
        last = facts.get("last")
        told = None if last is None else OutboxId.parse(last)
        return EpochStart(epoch, str(facts.get("reason")), told)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return EpochStart(epoch, "unreadable", None)
