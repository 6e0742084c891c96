"""Changes to an audit database by someone who may do everything: the schema is the same before and after."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sqlalchemy import Connection, text

from sql_audit.store.database import Database


@contextlib.contextmanager
def lying(database: Database) -> Iterator[Connection]:
    """A transaction in which no trigger refuses anything, and on SQLite no CHECK either."""
    with database.writing(wait=True) as connection:
        assert connection is not None
        if database.dialect == "postgresql":
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            yield connection
            connection.commit()
            return
        connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
        triggers = connection.exec_driver_sql(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY rowid"
        ).all()
        try:
            for name, _ in triggers:
                connection.exec_driver_sql(f"DROP TRIGGER {name}")
            yield connection
            for _, sql in triggers:
                connection.exec_driver_sql(sql)
            connection.commit()
        finally:
            connection.exec_driver_sql("PRAGMA ignore_check_constraints = OFF")
