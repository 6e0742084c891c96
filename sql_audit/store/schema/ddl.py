"""Creates the whole schema: tables, indexes, partitions, triggers and views.

A database has the same schema after its migrations; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy import DDL, Connection

from sql_audit.store.schema.tables import APPEND_ONLY, EVERYDAY_INDEXES, in_dialect, metadata
from sql_audit.store.schema.triggers import (
    DOOR_FUNCTIONS,
    REFUSE_FUNCTION,
    refuse_truncate,
    triggers,
)
from sql_audit.store.schema.views import views

POSTGRES_EVENTS: Final = (
    (
        "ALTER TABLE job_event ADD CONSTRAINT job_event_pkey "
        "PRIMARY KEY (queue, epoch, seq, ordinal, at_ms)"
    ),
    "CREATE TABLE job_event_default PARTITION OF job_event DEFAULT",
    refuse_truncate("job_event_default"),
)
"""Statements that complete ``job_event`` on PostgreSQL: its primary key, and the default partition."""


def create_schema(connection: Connection) -> None:
    """Create the schema in a database that has none of its tables."""
    dialect = connection.dialect.name
    metadata.create_all(connection)
    for statement in _beside_tables(dialect, _schema(connection)):
        # DDL() replaces %, so each % is doubled.
        connection.execute(DDL(statement.replace("%", "%%")))  # type: ignore[no-untyped-call]


def _schema(connection: Connection) -> str:
    """Return the quoted name of the PostgreSQL schema in which tables are created; an empty text on SQLite."""
    if connection.dialect.name != "postgresql":
        return ""
    name = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    return str(name)


def _beside_tables(dialect: str, schema: str) -> Iterator[str]:
    """Yield the statements that create everything but tables and their plain indexes, in an order that can be
    executed.
    """
    if dialect == "postgresql":
        for function in (REFUSE_FUNCTION, *DOOR_FUNCTIONS):
            yield function.replace("{schema}", schema)
        yield from POSTGRES_EVENTS
    yield from (in_dialect(dialect, statement) for statement in EVERYDAY_INDEXES)
    for table in APPEND_ONLY:
        yield from triggers(dialect, table.name)
    yield from views(dialect).values()
