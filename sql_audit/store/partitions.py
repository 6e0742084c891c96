"""``job_event`` on PostgreSQL: a partition per month of the events' own time (UTC), and a default one.

The mirror makes them ahead. An event whose month has none goes to the default partition: nothing is
ever refused for its time. Removing a month is dropping a table.

    >>> month_of(1_795_225_746_504)
    Month(year=2026, number=11)
    >>> month_of(1_795_225_746_504).table
    'job_event_2026_11'
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, NamedTuple, Self

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from sql_audit.store.connection.database import Database
from sql_audit.store.connection.driver_errors import describe_error
from sql_audit.store.schema.triggers import refuse_truncate

AHEAD: Final = 2
"""Months after the present one that have a partition."""

MOVED_MAX: Final = 200_000
"""Most rows of the default partition that a mirror moves; the log cannot be read for these seconds."""

CHECK_VIOLATION: Final = "23514"
"""The default partition has events of the month whose partition is being created."""
INSUFFICIENT_PRIVILEGE: Final = "42501"

_NOT_FOR_LONG: Final = text("SET LOCAL lock_timeout = '2s'")
_MORE_THAN: Final = text("SELECT 1 FROM job_event_default OFFSET :moved_max LIMIT 1")
_NAME: Final = re.compile(r"job_event_(\d{4})_(\d\d)")
_PARTITIONS: Final = text(
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
    "WHERE i.inhparent = 'job_event'::regclass"
)


class Month(NamedTuple):
    """A month of the calendar, in UTC."""

    year: int
    number: int

    @property
    def next(self) -> Month:
        return Month(self.year + self.number // 12, self.number % 12 + 1)

    @property
    def begin_ms(self) -> int:
        return int(datetime(self.year, self.number, 1, tzinfo=UTC).timestamp()) * 1000

    @property
    def end_ms(self) -> int:
        """The first moment after it."""
        return self.next.begin_ms

    @property
    def table(self) -> str:
        """The name of its partition."""
        return f"job_event_{self.year:04d}_{self.number:02d}"

    @property
    def bounds(self) -> str:
        """For FOR VALUES."""
        return f"FROM ({self.begin_ms:d}) TO ({self.end_ms:d})"

    @classmethod
    def of_table(cls, name: str) -> Self | None:
        found = _NAME.fullmatch(name)
        return cls(int(found[1]), int(found[2])) if found else None


def month_of(at_ms: int) -> Month:
    """The month of a moment."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return Month(moment.year, moment.month)


def partitions(connection: Connection) -> list[Month]:
    """The months that have a partition, oldest first."""
    names = connection.execute(_PARTITIONS).scalars()
    return sorted(month for name in names if (month := Month.of_table(name)) is not None)


def create_partition(connection: Connection, month: Month) -> None:
    """Give a month its partition."""
    connection.execute(
        text(f"CREATE TABLE {month.table} PARTITION OF job_event FOR VALUES {month.bounds}")
    )
    connection.execute(text(refuse_truncate(month.table)))


class Ahead(NamedTuple):
    """The result of creating future partitions."""

    made: list[Month]
    left: dict[Month, str]
    """Months that have no partition yet, and why. Their events have a place: the default partition."""


def create_ahead(database: Database, now_ms: int, *, moved_max: int | None = MOVED_MAX) -> Ahead:
    """Make the partitions of this month and of the AHEAD next ones, where they are missing.

    A month whose events stand in the default partition already gets them, unless that has more than ``moved_max`` rows
    (None: however many it has), which cannot be read meanwhile. Does nothing on SQLite. Raises
    sqlalchemy.exc.DBAPIError if the database does not answer.
    """
    ahead = Ahead([], {})
    if database.dialect != "postgresql":
        return ahead
    wanted = [month_of(now_ms)]
    for _ in range(AHEAD):
        wanted.append(wanted[-1].next)
    existing = _existing(database)
    for month in wanted:
        if month in existing:
            continue
        try:
            _make(database, month, moved_max)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            # Another mirror may have made it since it was looked.
            if month not in _existing(database):
                ahead.left[month] = _told(error)
        except _TooMany as error:
            ahead.left[month] = str(error)
        else:
            ahead.made.append(month)
    return ahead


def _existing(database: Database) -> list[Month]:
    with database.readers.connect() as connection:
        return partitions(connection)


class _TooMany(Exception):
    """The default partition has more rows than may be moved meanwhile."""


def _make(database: Database, month: Month, moved_max: int | None) -> None:
    with database.writing() as connection:
        assert connection is not None
        connection.execute(_NOT_FOR_LONG)
        try:
            with connection.begin_nested():
                create_partition(connection, month)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != CHECK_VIOLATION:
                raise
            _move(connection, month, moved_max)
        connection.commit()


def _move(connection: Connection, month: Month, moved_max: int | None) -> None:
    """Make a month's partition although the default one has events of it: those come along."""
    connection.execute(text("LOCK TABLE job_event IN ACCESS EXCLUSIVE MODE"))
    if moved_max is not None:
        counted = connection.execute(_MORE_THAN, {"moved_max": moved_max}).first()
        if counted is not None:
            raise _TooMany(
                f"the default partition has its events, and more than {moved_max} rows: "
                "`rq-core audit migrate` moves them; the log cannot be read meanwhile"
            )
    connection.execute(text("ALTER TABLE job_event DETACH PARTITION job_event_default"))
    connection.execute(text("ALTER TABLE job_event_default RENAME TO job_event_moved"))
    connection.execute(text("CREATE TABLE job_event_default PARTITION OF job_event DEFAULT"))
    connection.execute(text(refuse_truncate("job_event_default")))
    create_partition(connection, month)
    connection.execute(text("INSERT INTO job_event SELECT * FROM job_event_moved"))
    connection.execute(text("DROP TABLE job_event_moved"))


def _told(error: DBAPIError) -> str:
    says = describe_error(error)
    if getattr(error.orig, "sqlstate", None) == INSUFFICIENT_PRIVILEGE:
        return f"{says}: let the owner of the tables run `rq-core audit migrate` each month"
    return says
