"""Creates the partitions of ``job_event`` on PostgreSQL: one for each month of the events' time (UTC), and a default
partition.

The mirror creates the partitions of the coming months. Events of a month without a partition go to the default
partition, so no event is refused because of its time. A whole month is removed by dropping its table.

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
"""Number of months after the current month whose partitions are created ahead."""

MOVED_MAX: Final = 200_000
"""Maximum number of rows in the default partition that a mirror moves. The log cannot be read while rows are moved
(some seconds)."""

CHECK_VIOLATION: Final = "23514"
"""The SQLSTATE with which PostgreSQL refuses a new partition, because the default partition has events of its month."""
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
        """The time (Unix ms) at which the next month begins."""
        return self.next.begin_ms

    @property
    def table(self) -> str:
        """The name of the month's partition."""
        return f"job_event_{self.year:04d}_{self.number:02d}"

    @property
    def bounds(self) -> str:
        """The bounds of the month's partition, for the clause FOR VALUES."""
        return f"FROM ({self.begin_ms:d}) TO ({self.end_ms:d})"

    @classmethod
    def of_table(cls, name: str) -> Self | None:
        found = _NAME.fullmatch(name)
        return cls(int(found[1]), int(found[2])) if found else None


def month_of(at_ms: int) -> Month:
    """Return the month of a time (Unix ms)."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return Month(moment.year, moment.month)


def partitions(connection: Connection) -> list[Month]:
    """Return the months that have a partition, oldest first."""
    names = connection.execute(_PARTITIONS).scalars()
    return sorted(month for name in names if (month := Month.of_table(name)) is not None)


def create_partition(connection: Connection, month: Month) -> None:
    """Create the partition of a month, and its trigger against TRUNCATE."""
    connection.execute(
        text(f"CREATE TABLE {month.table} PARTITION OF job_event FOR VALUES {month.bounds}")
    )
    connection.execute(text(refuse_truncate(month.table)))


class Ahead(NamedTuple):
    """The result of :func:`create_ahead`: months that got a partition, and months that still have none."""

    made: list[Month]
    left: dict[Month, str]
    """The reasons why months still have no partition, by month. Their events go to the default partition."""


def create_ahead(database: Database, now_ms: int, *, moved_max: int | None = MOVED_MAX) -> Ahead:
    """Create the missing partitions of the current month and of the next AHEAD months.

    Events of a month that are in the default partition are moved to the new partition; the log cannot be read
    meanwhile. If the default partition has more than ``moved_max`` rows (None: no limit), such a month gets no
    partition. On SQLite nothing happens. Raise sqlalchemy.exc.DBAPIError if the database does not answer.
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
            # Another mirror may have created the partition meanwhile.
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
    """Raised if the default partition has more rows than a mirror may move at once."""


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
    """Create a month's partition, and move the month's events from the default partition into it.

    Raise _TooMany if the default partition has more than ``moved_max`` rows.
    """
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
