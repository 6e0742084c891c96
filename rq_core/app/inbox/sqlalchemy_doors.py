"""Doors, which are adapters that run SQL statements, for the sessions and connections of SQLAlchemy. After the commit
of a session, the process that reads the inbox (the relay) is woken.

This module imports SQLAlchemy only when a caller passes an object of SQLAlchemy.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from rq_core.app.inbox.doors import Wake, check_dialect
from rq_core.app.inbox.drivers import commits_by_itself
from rq_core.app.inbox.rows import placeholders
from rq_core.errors import InvalidOption, NotInTransaction

_MARKS: Final = {"format": "%s", "pyformat": "%s", "qmark": "?", "numeric_dollar": "$"}
"""The placeholders of drivers, by the driver's ``paramstyle``."""
_WAKES: Final = "rq_core.inbox"
"""The key in a session's ``info`` for the list of functions that are called after the session's next commit."""


class ConnectionDoor:
    """Runs SQL statements in the transaction of a Connection of SQLAlchemy, which begins a transaction by itself."""

    is_async = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def dialect(self) -> str:
        """The kind of the database, ``postgresql`` or ``sqlite``."""
        return str(self._connection.dialect.name)

    def open(self) -> None:
        """Raise NotInTransaction if the connection commits each statement by itself. See Door.open."""
        _check(self._connection)

    def run(self, text: str, values: tuple[str, ...]) -> int:
        """Run a statement, and return the number of its rows. See Door.run."""
        return _rows(self._connection.exec_driver_sql(*_bound(self._connection, text, values)))

    def after_commit(self, wake: Wake) -> None:
        """Do nothing. After the commit of a Connection of SQLAlchemy, no relay is woken."""


class SessionDoor(ConnectionDoor):
    """Runs SQL statements in the transaction of a Session or a scoped_session of SQLAlchemy."""

    def __init__(self, session: Any) -> None:
        super().__init__(None)
        # A scoped session is a function that returns the session of this thread, or task.
        self._session = session() if callable(session) else session

    def open(self) -> None:
        """Get the session's connection. Raise NotInTransaction if the connection commits each statement by itself."""
        self._connection = self._session.connection()
        super().open()

    def after_commit(self, wake: Wake) -> None:
        """Call ``wake``, which wakes the process that reads the inbox (the relay), after the session's commit."""
        wake_after_commit(self._session, wake)


class AsyncConnectionDoor:
    """Runs SQL statements in the transaction of an AsyncConnection of SQLAlchemy."""

    is_async = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def dialect(self) -> str:
        """The kind of the database, ``postgresql`` or ``sqlite``."""
        return str(self._connection.dialect.name)

    async def open(self) -> None:
        """Raise NotInTransaction if the connection commits each statement by itself. See Door.open."""
        _check(self._connection.sync_connection)

    async def run(self, text: str, values: tuple[str, ...]) -> int:
        """Run a statement, and return the number of its rows. See Door.run."""
        return _rows(
            await self._connection.exec_driver_sql(*_bound(self._connection, text, values))
        )

    def after_commit(self, wake: Wake) -> None:
        """Do nothing. After the commit of an AsyncConnection of SQLAlchemy, no relay is woken."""


class AsyncSessionDoor(AsyncConnectionDoor):
    """Runs SQL statements in the transaction of an AsyncSession or an async_scoped_session of SQLAlchemy."""

    def __init__(self, session: Any) -> None:
        super().__init__(None)
        self._session = session() if callable(session) else session

    async def open(self) -> None:
        """Get the session's connection. Raise NotInTransaction if the connection commits each statement by itself."""
        self._connection = await self._session.connection()
        await super().open()

    def after_commit(self, wake: Wake) -> None:
        """Call ``wake``, which wakes the process that reads the inbox (the relay), after the session's commit."""
        wake_after_commit(self._session.sync_session, wake)


def _check(connection: Any) -> None:
    """Raise NotInTransaction if the connection commits each statement by itself.

    Raise InvalidOption if the database can have no inbox.
    """
    dialect = check_dialect(connection.dialect.name)
    made = connection.connection.dbapi_connection
    if dialect == "sqlite":
        is_alone = commits_by_itself(connection.connection.driver_connection)
    else:
        is_alone = bool(getattr(made, "autocommit", False))
    if is_alone:
        raise NotInTransaction


def _bound(connection: Any, text: str, values: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return a statement with the placeholders of the connection's driver, and its values. Raises InvalidOption."""
    style = connection.dialect.paramstyle
    if style not in _MARKS:
        must = (
            f"must be of a driver whose values are written as {', '.join(_MARKS)}, not as {style}"
        )
        raise InvalidOption.of("connection", connection.dialect.driver, must)
    return placeholders(text, _MARKS[style]), values


def _rows(result: Any) -> int:
    return len(result.all()) if result.returns_rows else int(result.rowcount)


def wake_after_commit(session: Any, wake: Wake) -> None:
    """Call ``wake`` once the session's transaction is committed. After a rollback, ``wake`` is not called."""
    event = importlib.import_module("sqlalchemy.event")
    if not event.contains(session, "after_commit", _committed):
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_transaction_end", _ended)
    session.info.setdefault(_WAKES, set()).add(wake)


def _committed(session: Any) -> None:
    # The end of a savepoint is no commit.
    if session.get_nested_transaction() is None:
        for wake in session.info.pop(_WAKES, ()):
            wake()


def _ended(session: Any, transaction: Any) -> None:
    if transaction.parent is None:
        session.info.pop(_WAKES, None)
