"""Connects to the database of a user's application. rq-core changes only the rows of the inbox there.

The connections work behind a pooler such as PgBouncer: no setting outlives its transaction.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from rq_core.installing import pip_install
from rq_core.masking import masked
from sql_audit.errors import (
    AuditUrlInvalid,
    InboxError,
    InboxFileMissing,
    InboxRefused,
    InboxUnavailable,
    InboxUrlInvalid,
)
from sql_audit.store.connection.database import normalise
from sql_audit.store.connection.driver_errors import answered, describe_error

BUSY_TIMEOUT_S: Final = 5.0
"""Seconds that a connection to SQLite waits for the lock of another connection."""
CONNECT_TIMEOUT_S: Final = 10


def inbox_url(text: str) -> URL:
    """Return the URL of a database for an inbox, from a path, ``sqlite:///path`` or ``postgresql://…``.

    Raise InboxUrlInvalid.
    """
    if text in (":memory:", "sqlite://", "sqlite:///:memory:"):
        raise InboxUrlInvalid(url=text, why="a database in memory is that of one connection")
    try:
        return normalise(text)
    except AuditUrlInvalid as error:
        raise InboxUrlInvalid(url=text, why=error.why) from None


def shown(url: URL) -> str:
    """Return a URL without its password, for messages."""
    if url.get_backend_name() == "sqlite":
        return masked(url.database or "")
    return masked(url.set(drivername="postgresql").render_as_string(hide_password=True))


def inbox_engine(url: URL, *, writes: bool = True, creates: bool = False) -> Engine:
    """Return an SQLAlchemy engine for a user's database.

    On SQLite, ``writes`` makes each transaction begin with the write lock. Without ``creates``, a missing SQLite file
    is an error at the first connection.

    Raise InboxUnavailable if the driver is not installed.
    """
    try:
        if url.get_backend_name() != "sqlite":
            arguments = {
                "connect_timeout": CONNECT_TIMEOUT_S,
                "application_name": "rq-core inbox",
                # A prepared statement belongs to a server's connection, which a pooler gives to other clients.
                "prepare_threshold": None,
                "client_encoding": "UTF8",
            }
            return create_engine(url, connect_args=arguments, pool_pre_ping=True)
        engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, poolclass=NullPool)
    except ModuleNotFoundError:
        why = f"no driver is installed: {pip_install('postgres')}"
        raise InboxUnavailable(url=shown(url), why=why) from None

    @event.listens_for(engine, "do_connect")
    def require_file(*_: Any) -> None:
        path = url.database or ""
        if not creates and not path.startswith("file:") and not Path(path).exists():
            why = f"there is no such file. `rq-core inbox migrate {shown(url)}` creates it"
            raise InboxFileMissing(url=shown(url), why=why)

    @event.listens_for(engine, "connect")
    def leave_transactions_to_us(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None
        # A text of SQLite may be any bytes. One that is not UTF-8 must not hide the others.
        connection.text_factory = lambda found: found.decode("utf-8", "surrogateescape")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


@contextlib.contextmanager
def explaining(url: URL) -> Iterator[None]:
    """Turn a database driver's error in the block into InboxRefused or InboxUnavailable."""
    try:
        yield
    except DBAPIError as error:
        raise inbox_failure(url, error) from error


def inbox_failure(url: URL, error: BaseException) -> InboxError:
    """Return InboxRefused for a driver's error if the database answered. Otherwise return InboxUnavailable."""
    if answered(error):
        return InboxRefused(url=shown(url), why=describe_error(error))
    return InboxUnavailable(url=shown(url), why=describe_error(error))
