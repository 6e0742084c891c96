"""Doors, which are adapters that run SQL statements, for connections of the drivers psycopg, asyncpg and sqlite3. These
drivers cannot call a function after a commit."""

from __future__ import annotations

import importlib
from typing import Any, Final

from rq_core.app.inbox.doors import Wake
from rq_core.app.inbox.rows import placeholders
from rq_core.errors import NotInTransaction

_IDLE: Final = 0
"""The transaction status, in libpq, of a connection on which no transaction is open."""


class PsycopgDoor:
    """Runs SQL statements in the transaction of a psycopg.Connection. Outside autocommit mode, psycopg begins a
    transaction by itself."""

    is_async = False
    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def open(self) -> None:
        """Raise NotInTransaction in autocommit mode outside a transaction."""
        _check_psycopg(self._connection)

    def run(self, text: str, values: tuple[str, ...]) -> int:
        """Run a statement, and return the number of its rows. See Door.run."""
        with _cursor("Cursor", self._connection) as cursor:
            cursor.execute(placeholders(text, "%s"), values)
            return len(cursor.fetchall())

    def after_commit(self, wake: Wake) -> None:
        """Do nothing, since psycopg cannot call a function after a commit."""


class AsyncPsycopgDoor:
    """Runs SQL statements in the transaction of a psycopg.AsyncConnection."""

    is_async = True
    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def open(self) -> None:
        """Raise NotInTransaction in autocommit mode outside a transaction."""
        _check_psycopg(self._connection)

    async def run(self, text: str, values: tuple[str, ...]) -> int:
        """Run a statement, and return the number of its rows. See Door.run."""
        async with _cursor("AsyncCursor", self._connection) as cursor:
            await cursor.execute(placeholders(text, "%s"), values)
            return len(await cursor.fetchall())

    def after_commit(self, wake: Wake) -> None:
        """Do nothing, since psycopg cannot call a function after a commit."""


def _cursor(kind: str, connection: Any) -> Any:
    """Return a plain cursor, since the connection's own cursor factory may use other placeholders or rows."""
    rows = importlib.import_module("psycopg.rows")
    return getattr(importlib.import_module("psycopg"), kind)(connection, row_factory=rows.tuple_row)


def _check_psycopg(connection: Any) -> None:
    if connection.autocommit and connection.info.transaction_status == _IDLE:
        raise NotInTransaction


class AsyncpgDoor:
    """Runs SQL statements in the transaction of an asyncpg.Connection, or of a connection from an asyncpg pool."""

    is_async = True
    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def open(self) -> None:
        """Raise NotInTransaction outside a transaction."""
        if not self._connection.is_in_transaction():
            raise NotInTransaction

    async def run(self, text: str, values: tuple[str, ...]) -> int:
        """Run a statement, and return the number of its rows. See Door.run."""
        return len(await self._connection.fetch(placeholders(text, "$"), *values))

    def after_commit(self, wake: Wake) -> None:
        """Do nothing, since asyncpg cannot call a function after a commit."""


class SqliteDoor:
    """Runs SQL statements in the transaction of a sqlite3.Connection."""

    is_async = False
    dialect = "sqlite"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def open(self) -> None:
        """Raise NotInTransaction if the connection commits each statement by itself."""
        if commits_by_itself(self._connection):
            raise NotInTransaction

    def run(self, text: str, values: tuple[str, ...]) -> int:
        """Run a statement, and return the number of its rows. See Door.run."""
        cursor = self._connection.execute(text, values)
        return count_rows(cursor)

    def after_commit(self, wake: Wake) -> None:
        """Do nothing, since sqlite3 cannot call a function after a commit."""


def commits_by_itself(connection: Any) -> bool:
    """Return whether a connection of sqlite3 commits each statement by itself."""
    if connection.in_transaction:
        return False
    # Since Python 3.12 a connection may say autocommit; otherwise, and before, isolation_level decides.
    autocommit = getattr(connection, "autocommit", None)
    if isinstance(autocommit, bool):
        return autocommit
    return connection.isolation_level is None


def count_rows(cursor: Any) -> int:
    """Return the number of rows that a statement returned; for a statement without rows, the number that it changed."""
    return len(cursor.fetchall()) if cursor.description is not None else cursor.rowcount
