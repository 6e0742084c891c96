"""Doors: objects with one interface, which run statements in transactions on connections of other libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, Protocol

from rq_core.app.inbox.rows import DIALECTS
from rq_core.errors import InvalidOption

Wake = Callable[[], None]


class AnyDoor(Protocol):
    """The methods that all doors have. A door is an adapter that runs SQL statements on a connection of another
    library."""

    is_async: bool

    @property
    def dialect(self) -> str:
        """The kind of the database, ``postgresql`` or ``sqlite``. Call ``open`` before you read it."""
        ...

    def after_commit(self, wake: Wake) -> None:
        """Call ``wake``, which wakes the process that reads the inbox (the relay), after the transaction's commit, if
        the library can do so. Never call it after a rollback."""
        ...


class Door(AnyDoor, Protocol):
    """Runs SQL statements in the transaction of a blocking connection."""

    def open(self) -> None:
        """Prepare the connection for SQL statements. Raises NotInTransaction if the connection commits each statement
        by itself."""
        ...

    def run(self, text: str, values: tuple[str, ...]) -> int:
        """Run a statement. Return the number of rows that it returned; for a statement without rows, the number that it
        changed."""
        ...


class AsyncDoor(AnyDoor, Protocol):
    """Runs SQL statements in the transaction of an asynchronous connection."""

    async def open(self) -> None:
        """Prepare the connection for statements. See Door.open."""
        ...

    async def run(self, text: str, values: tuple[str, ...]) -> int:
        """Run a statement, and return the number of its rows. See Door.run."""
        ...


_DOORS: Final = {
    ("sqlalchemy", "AsyncSession"): "sqlalchemy_doors:AsyncSessionDoor",
    ("sqlalchemy", "async_scoped_session"): "sqlalchemy_doors:AsyncSessionDoor",
    ("sqlalchemy", "AsyncConnection"): "sqlalchemy_doors:AsyncConnectionDoor",
    ("sqlalchemy", "Session"): "sqlalchemy_doors:SessionDoor",
    ("sqlalchemy", "scoped_session"): "sqlalchemy_doors:SessionDoor",
    ("sqlalchemy", "Connection"): "sqlalchemy_doors:ConnectionDoor",
    ("psycopg", "AsyncConnection"): "drivers:AsyncPsycopgDoor",
    ("psycopg", "Connection"): "drivers:PsycopgDoor",
    ("asyncpg", "Connection"): "drivers:AsyncpgDoor",
    ("asyncpg", "PoolConnectionProxy"): "drivers:AsyncpgDoor",
    ("sqlite3", "Connection"): "drivers:SqliteDoor",
}
"""The adapter (door) for a connection, as a module and a class. The key is the library and the name of the connection's
class, or of a base class of this class."""


def door_to(connection: object) -> Any:
    """Return the adapter (door) that runs SQL statements on a connection. A string is the alias of a database of
    Django.

    Raises InvalidOption for an object that is no connection of a known library.
    """
    if isinstance(connection, str) and "://" not in connection:
        return _door("django_door:DjangoDoor", connection)
    for kind in type(connection).__mro__:
        found = _DOORS.get((kind.__module__.partition(".")[0], kind.__name__))
        if found is not None:
            return _door(found, connection)
    must = (
        "must be a Session or a Connection of SQLAlchemy, one of their async twins, a connection of psycopg, asyncpg"
        " or sqlite3, or the alias of a database in Django's DATABASES"
    )
    raise InvalidOption.of("connection", type(connection), must)


def _door(place: str, connection: object) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"rq_core.app.inbox.{module}"), name)(connection)


def check_dialect(dialect: str) -> str:
    """Return ``dialect``, the kind of a database. Raises InvalidOption if it is neither PostgreSQL nor SQLite."""
    if dialect not in DIALECTS:
        must = f"must be of PostgreSQL or SQLite, not of {dialect}"
        raise InvalidOption.of("connection", dialect, must)
    return dialect
