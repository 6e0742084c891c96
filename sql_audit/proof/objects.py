"""Whether the database's tables, indexes, triggers and views are those that the migration made.

Rows that are true prove nothing if a view, an index or a policy shows others, and nothing protects them where a trigger
is gone. Objects that were added beside them are no concern, unless they act on a table of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

from sqlalchemy import create_engine, text

from sql_audit.proof import catalog
from sql_audit.store import schema
from sql_audit.store.database import Database
from sql_audit.store.tables import metadata

_OBJECTS: Final = text(
    "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite|_%' ESCAPE '|' ORDER BY name"
)

Object = tuple[str, str]
"""Type and name."""


def differences(database: Database) -> Iterator[str]:
    """What is not as the migration made it. Raises sqlalchemy.exc.DBAPIError."""
    if database.dialect == "sqlite":
        yield from _on_sqlite(database)
    else:
        with database.snapshot() as connection:
            yield from catalog.differences(connection)


@cache
def _made_on_sqlite() -> dict[Object, str]:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        schema.create(connection)
        made = {(row.type, row.name): row.sql for row in connection.execute(_OBJECTS)}
    engine.dispose()
    return made


def _on_sqlite(database: Database) -> Iterator[str]:
    made = _made_on_sqlite()
    with database.snapshot() as connection:
        rows = connection.execute(_OBJECTS).all()
        found = {(row.type, row.name): row.sql for row in rows}
        for (kind, name), sql in made.items():
            if (kind, name) not in found:
                yield f"{kind} {name} is missing"
            elif found[kind, name] != sql:
                yield f"{kind} {name} has another definition"
        for row in rows:
            if (
                row.type == "trigger"
                and row.tbl_name in metadata.tables
                and ("trigger", row.name) not in made
            ):
                yield f"trigger {row.name} on {row.tbl_name} was added"
        for table in metadata.tables:
            if ("table", table) in found:
                # Also what CHECKs say, since SQLite lets a connection ignore them.
                wrong = connection.exec_driver_sql(f"PRAGMA integrity_check('{table}')").scalars()
                yield from (f"table {table}: {says}" for says in wrong if says != "ok")
