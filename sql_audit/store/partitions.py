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

from sql_audit.store.database import Database
from sql_audit.store.triggers import refuse_truncate

AHEAD: Final = 2
"""Months after the present one that have a partition."""

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


def create(connection: Connection, month: Month) -> None:
    """Give a month its partition."""
    connection.execute(
        text(f"CREATE TABLE {month.table} PARTITION OF job_event FOR VALUES {month.bounds}")
    )
    connection.execute(text(refuse_truncate(month.table)))


def create_ahead(database: Database, now_ms: int) -> list[Month]:
    """Make the partitions of this month and of the AHEAD next ones, where they are missing. Returns
    those that it made.

    A month whose events stand in the default partition already, or whose moment is bad (the table
    is locked), is left for another time: its events have a place. Does nothing on SQLite.
    """
    if database.dialect != "postgresql":
        return []
    wanted = [month_of(now_ms)]
    for _ in range(AHEAD):
        wanted.append(wanted[-1].next)
    with database.readers.connect() as connection:
        existing = partitions(connection)
    made = []
    for month in wanted:
        if month in existing:
            continue
        try:
            with database.writing() as connection_:
                assert connection_ is not None
                connection_.execute(text("SET LOCAL lock_timeout = '2s'"))
                create(connection_, month)
                connection_.commit()
        except DBAPIError:
            continue
        made.append(month)
    return made
