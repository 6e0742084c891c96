"""Doors: objects with one interface for running statements in the transactions of other libraries' connections."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, Protocol

from rq_core.app.inbox.rows import DIALECTS
from rq_core.errors import InvalidOption

Wake = Callable[[], None]


class AnyDoor(Protocol):
    """The methods that doors to blocking connections and doors to asynchronous connections have in common."""

    is_async: bool

    @property
    def dialect(self) -> str:
        """The kind of the database, ``postgresql`` or ``sqlite``. It is known after ``open``."""
        ...

    def after_commit(self, wake: Wake) -> None:
        """Call ``wake`` after the transaction's commit, if the library can call a function then. Never call it after a
        rollback."""
        ...


class Door(AnyDoor, Protocol):
    """Runs statements in the transaction of a connection."""

    def open(self) -> None:
        """Prepare the connection for statements. Raises NotInTransaction if each statement would be committed by
        itself."""
        ...

    def run(self, text: str, values: tuple[str, ...]) -> int:
        """Run a statement. Returns the number of rows that it returned or, if it returns no rows, changed."""
        ...


class AsyncDoor(AnyDoor, Protocol):
    """A door to an asynchronous connection."""

    async def open(self) -> None:
        """See Door.open."""
        ...

    async def run(self, text: str, values: tuple[str, ...]) -> int:
        """See Door.run."""
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
"""The door for each kind of connection, by the library and name of the connection's class, or of one of its base
classes."""


def door_to(connection: object) -> Any:
    """Return a Door or an AsyncDoor to a connection; a string is the alias of a database of Django.

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
    """Return the name of a database that can have an inbox. Raises InvalidOption for any other database."""
    if dialect not in DIALECTS:
        must = f"must be of PostgreSQL or SQLite, not of {dialect}"
        raise InvalidOption.of("connection", dialect, must)
    return dialect
