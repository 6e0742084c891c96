"""The audit database: its address, its connections, its transactions, and the writing of many rows at once.

The connections work behind a pooler such as PgBouncer, which may give a server's connection to other clients after each
transaction. So each transaction on PostgreSQL makes its own settings, and no setting outlives its transaction.

One process writes at a time. On PostgreSQL, a mirror locks the cursor of its queue. On SQLite, a writer uses BEGIN
IMMEDIATE and holds a lock file. SQLite before 3.51.3 can damage its write-ahead log if one connection checkpoints while
another writes. So only the connection that holds the lock file writes or checkpoints.

    database = Database("audit.db")
    with database.writing() as connection:      # None if another process is writing
        ...
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    ExceptionContext,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from rq_core.installing import pip_install
from rq_core.masking import masked
from sql_audit.errors import (
    AuditEncoding,
    AuditNotWritable,
    AuditUnavailable,
    AuditUrlInvalid,
    PlaceTaken,
)
from sql_audit.store.connection import driver_errors
from sql_audit.store.connection.background import BackgroundCall
from sql_audit.store.connection.copy import EventRows, Row, Rows
from sql_audit.store.connection.statements import POSTGRESQL, SQLITE, of_rows

BUSY_TIMEOUT_MS: Final = 5_000
"""Milliseconds that a connection to SQLite waits for the lock of another connection."""

IDLE_TIMEOUT_MS: Final = 30_000
"""Milliseconds after which PostgreSQL ends an idle transaction. So if a mirror hangs, another mirror can continue."""

STALLED_MS: Final = 60_000
"""Milliseconds after which a waiting mirror ends the connection of a mirror that hangs within a COPY. PostgreSQL does
not count such a transaction as idle, so no timeout of the server ends it."""

CHECKPOINT_PAGES: Final = 4_000
"""Number of pages in SQLite's write-ahead log at which the writer makes a checkpoint (16 MB)."""

SQLITE_ROWS: Final = 256
"""Number of rows in one INSERT into SQLite. Such an INSERT takes a quarter less time than one INSERT for each row."""

BACKGROUND_ROWS: Final = 500
"""Minimum number of rows for which a second thread is started while SQLite inserts the rows. For fewer rows, starting
the thread would take more time than it saves."""

PAUSE_S: Final = 1.0
"""Seconds without use after which the writer's connection to PostgreSQL is checked before the next use: the server may
have closed it. Readers' connections are checked before every use."""

_LIBPQ: Final = re.compile(
    r"(?:^|\s)(?:host|hostaddr|port|dbname|user|password|passfile|service|sslmode)\s*=",
    re.IGNORECASE,
)
"""Matches a connection string of libpq, such as ``host=… password=…``."""
_NO_SCHEME: Final = re.compile(r"[^/@:\s]*:.*@")
"""Matches a URL without a scheme, such as ``user:password@host/database``."""

T = TypeVar("T")


def normalise(text: str) -> URL:
    """Return the URL of an audit database. ``text`` is a path, ``sqlite:///path`` or ``postgresql://…``.

    Raise AuditUrlInvalid for any other text, and for a database in memory.
    """
    text = text.strip()
    if not text:
        raise AuditUrlInvalid(url=text, why="it is empty")
    if "://" not in text:
        # If the text were taken as a path, the file's name would have the password in it.
        if _LIBPQ.search(text) or _NO_SCHEME.match(text):
            raise AuditUrlInvalid(url=text, why="it is neither a path nor a URL")
        return URL.create("sqlite", database=text)
    unescaped = text.count("@") > 1 or "@" in text.partition("?")[2]
    if unescaped and not text.startswith("sqlite"):
        raise AuditUrlInvalid(url=text, why="in a password write %40 for @, and %3F for ?")
    url = None
    with contextlib.suppress(ArgumentError, ValueError):
        url = make_url(text)
    if url is None:
        # Raised outside the except block: otherwise the library's error, which may repeat the whole URL, would be its
        # context.
        raise AuditUrlInvalid(url=text, why="it cannot be read as a URL")
    dialect = url.drivername.partition("+")[0]
    if dialect in ("postgres", "postgresql"):
        return url.set(drivername="postgresql+psycopg")
    if dialect != "sqlite":
        why = f"{dialect} is not supported, only sqlite and postgresql"
        raise AuditUrlInvalid(url=url.render_as_string(), why=why)
    if not url.database or url.database == ":memory:":
        raise AuditUrlInvalid(url=text, why="an audit log in memory would be lost")
    # An application's URL may name a driver for asyncio, as sqlite+aiosqlite.
    return url.set(drivername="sqlite")


class Database:
    """One audit database. It connects at its first use. Several threads may use it."""

    def __init__(self, url: str | URL) -> None:
        """Prepare the connections; none is opened yet. Raise AuditUrlInvalid if ``url`` is not valid, and
        AuditUnavailable if the driver is not installed.
        """
        self.address = normalise(url) if isinstance(url, str) else url
        self.dialect = self.address.get_backend_name()
        self.on_statement: Callable[[str], None] | None = None
        """A function that is called with every statement, COPY included; for tests that count statements."""
        try:
            self.engine = self._make_engine(writer=True)
            self.readers = self._make_engine(writer=False)
            """The engine whose connections only read."""
        except ModuleNotFoundError:
            raise AuditUnavailable(
                url=self.url, why=f"no driver is installed: {pip_install('postgres')}"
            ) from None

    @property
    def url(self) -> str:
        """The database's address without its password, for messages."""
        if self.dialect == "sqlite":
            return masked(self.address.database or "")
        address = self.address.set(drivername="postgresql")
        return masked(address.render_as_string(hide_password=True))

    @property
    def path(self) -> Path:
        """The path of the SQLite file. PostgreSQL databases have none."""
        assert self.dialect == "sqlite"
        return Path(self.address.database or "")

    def snapshot(self) -> Connection:
        """Return a connection for reading. All its statements read the same snapshot of the database."""
        connection = self.readers.connect()
        if self.dialect == "postgresql":
            connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        return connection

    def close(self) -> None:
        """Close all connections. The object may be used again."""
        self.engine.dispose()
        self.readers.dispose()

    # Connections.

    def _make_engine(self, *, writer: bool) -> Engine:
        if self.dialect == "sqlite":
            engine = create_engine(self.address, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000})
            begin = "BEGIN IMMEDIATE" if writer else "BEGIN"

            @event.listens_for(engine, "connect")
            def set_up(connection: sqlite3.Connection, _: Any) -> None:
                try:
                    _set_up_sqlite(connection, writer=writer)
                except sqlite3.OperationalError as error:
                    self._raise_if_not_writable(error)
                    raise

            @event.listens_for(engine, "handle_error")
            def explain(context: ExceptionContext) -> None:
                self._raise_if_not_writable(context.original_exception)

            @event.listens_for(engine, "begin")
            def begin_transaction(connection: Connection) -> None:
                connection.exec_driver_sql(begin)

        else:
            engine = create_engine(
                self.address,
                connect_args={
                    "connect_timeout": 10,
                    "application_name": "rq-core audit",
                    # A prepared statement belongs to a server's connection, which a pooler gives to other clients.
                    "prepare_threshold": None,
                    # Regardless of the URL, the environment, the role and the database.
                    "client_encoding": "UTF8",
                },
            )

            @event.listens_for(engine, "checkin")
            def note_use(_connection: Any, record: ConnectionPoolEntry) -> None:
                record.info["used"] = time.monotonic()

            @event.listens_for(engine, "checkout")
            def look_after_a_pause(connection: Any, record: Any, _proxy: Any) -> None:
                # The server may have closed the connection meanwhile (idle_session_timeout, a failover), which is no
                # error. The writer, which uses its connection all the time, checks it only after a pause.
                used = record.info.get("used", math.inf)
                pause_s = PAUSE_S if writer else 0.0
                if time.monotonic() - used > pause_s and _is_gone(connection):
                    raise DisconnectionError

            @event.listens_for(engine, "connect")
            def set_up_transactions(connection: Any, _: Any) -> None:
                encoding = connection.info.parameter_status("server_encoding")
                if encoding not in (None, "UTF8"):
                    connection.close()
                    raise AuditEncoding(url=self.url, encoding=encoding)
                # The driver adds this to each BEGIN; it ends with the transaction.
                connection.read_only = not writer

            if writer:

                @event.listens_for(engine, "begin")
                def bound_transaction(connection: Connection) -> None:
                    connection.exec_driver_sql(POSTGRESQL.BOUND.format(idle_ms=IDLE_TIMEOUT_MS))

        @event.listens_for(engine, "before_cursor_execute")
        def tell(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if self.on_statement is not None:
                self.on_statement(statement)

        return engine

    @contextlib.contextmanager
    def writing(self, *, wait: bool = False) -> Iterator[Connection | None]:
        """Yield a connection with a transaction for writing. The caller must commit; otherwise the transaction is
        rolled back.

        If another process writes the SQLite file, yield None, or wait with ``wait``. Raise sqlalchemy.exc.DBAPIError if
        the database does not answer.
        """
        with contextlib.ExitStack() as stack:
            if self.dialect == "sqlite" and not stack.enter_context(self._lock_file(wait=wait)):
                yield None
                return
            connection = stack.enter_context(self.engine.connect())
            connection.begin()
            yield connection

    def end_stalled(self, older_than_ms: int = STALLED_MS) -> int:
        """End the connections of mirrors that hang in a COPY, if their transactions are older than ``older_than_ms``.

        Return the number of ended connections. On SQLite, return 0. (PostgreSQL itself ends idle transactions.)
        """
        if self.dialect != "postgresql":
            return 0
        with self.writing() as connection:
            assert connection is not None
            ended: int = connection.exec_driver_sql(
                POSTGRESQL.END_STALLED, (older_than_ms,)
            ).scalar_one()
            connection.commit()
        return ended

    def _raise_if_not_writable(self, error: BaseException) -> None:
        """Raise AuditUnavailable if the SQLite file's directory is missing, and AuditNotWritable if ``error`` is about
        rights. Otherwise return.
        """
        if not self.path.parent.is_dir():
            raise AuditUnavailable(url=self.url, why=driver_errors.missing(self.path)) from error
        if driver_errors.is_about_rights(error):
            why = driver_errors.missing(self.path) or str(error)
            raise AuditNotWritable(url=self.url, why=why) from error

    @contextlib.contextmanager
    def _lock_file(self, *, wait: bool) -> Iterator[bool]:
        path = self.path.with_name(self.path.name + "-mirror")
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._raise_if_not_writable(error)
            raise AuditUnavailable(url=self.url, why=str(error)) from error
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(handle)

    # Many rows.

    def jobs(self, connection: Connection, queue: str, ids: list[str]) -> Sequence[Sequence[Any]]:
        """Return the rows of ``job`` for ``ids``, by one statement. Ids without a row are left out."""
        if self.dialect == "sqlite":
            bound = queue, json.dumps(ids)
            return connection.exec_driver_sql(SQLITE.JOBS, bound).fetchall()
        return connection.exec_driver_sql(POSTGRESQL.JOBS, (queue, ids)).fetchall()

    def insert_events(
        self, connection: Connection, rows: EventRows, meanwhile: Callable[[], T]
    ) -> T:
        """Insert rows of ``job_event``, and call ``meanwhile`` while the database works. Return the value of that call.

        The rows must be in the order of their numbers. On SQLite with fewer than BACKGROUND_ROWS rows, ``meanwhile`` is
        called after the INSERT.

        Raise PlaceTaken if PostgreSQL already has an event between the first and the last number.
        """
        if not rows:
            return meanwhile()
        if self.dialect == "sqlite":
            if len(rows) < BACKGROUND_ROWS:
                _insert_many(connection, SQLITE.INSERT_EVENTS, rows)
                return meanwhile()
            call = BackgroundCall(meanwhile)
            try:
                _insert_many(connection, SQLITE.INSERT_EVENTS, rows)
            finally:
                call.wait()
            return call.result()
        bounds = (rows[0][0], *rows[0][1:3], *rows[-1][1:3])
        taken = connection.exec_driver_sql(POSTGRESQL.TAKEN, bounds).first()
        if taken is not None:
            raise PlaceTaken(queue=rows[0][0], number=f"{taken[0]}-{taken[1]}")
        made: list[T] = []
        self._copy(
            connection, POSTGRESQL.COPY_EVENTS, rows.text(), lambda: made.append(meanwhile())
        )
        return made[0]

    def put_jobs(self, connection: Connection, new: Rows, old: Rows) -> None:
        """Write rows of ``job``: insert ``new``, and replace the rows of ``old``."""
        if self.dialect == "sqlite":
            _insert_many(connection, SQLITE.UPSERT_JOBS, [*new, *old])
            return
        if new:
            self._copy(connection, POSTGRESQL.COPY_JOBS, new.text())
        if old:
            self._stage(connection, POSTGRESQL.COPY_JOBS_STAGING, old)
            connection.exec_driver_sql(POSTGRESQL.UPDATE_JOBS)

    def put_attempts(self, connection: Connection, new: Rows, old: Rows) -> None:
        """Write rows of ``job_attempt``: insert ``new``, and insert or replace the rows of ``old``."""
        if self.dialect == "sqlite":
            _insert_many(connection, SQLITE.UPSERT_ATTEMPTS, [*new, *old])
            return
        if new:
            self._copy(connection, POSTGRESQL.COPY_ATTEMPTS, new.text())
        if old:
            self._stage(connection, POSTGRESQL.COPY_ATTEMPTS_STAGING, old)
            connection.exec_driver_sql(POSTGRESQL.END_ATTEMPTS)

    def count_minutes(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Add ``rows`` to the counts in ``claim_minute``. Insert a row for each minute that has none."""
        if not rows:
            return
        if self.dialect == "sqlite":
            connection.exec_driver_sql(SQLITE.COUNT_MINUTES, list(rows))
            return
        # All mirrors lock the rows in the same order, so that they cannot wait for each other.
        columns = [list(column) for column in zip(*sorted(map(tuple, rows)), strict=True)]
        connection.exec_driver_sql(POSTGRESQL.COUNT_MINUTES, tuple(columns))

    def _stage(self, connection: Connection, statement: str, rows: Rows) -> None:
        connection.exec_driver_sql(POSTGRESQL.STAGING[statement])
        self._copy(connection, statement, rows.text())

    def _copy(
        self,
        connection: Connection,
        statement: str,
        text: str,
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        if self.on_statement is not None:
            self.on_statement(statement)
        driver: Any = connection.connection.driver_connection
        try:
            with driver.cursor() as cursor, cursor.copy(statement) as copy:
                copy.write(text)
                if meanwhile is not None:
                    meanwhile()
        except Exception:
            if driver.closed:
                # SQLAlchemy does not see COPY, and so would not notice that the connection is closed.
                connection.invalidate()
            raise


def _insert_many(connection: Connection, statement: str, rows: Sequence[Row]) -> None:
    """Insert rows into SQLite: most in blocks with one INSERT per block, the last ones with one INSERT per row.

    The number of rows of a block is a power of two: at most SQLITE_ROWS, and at most half of the rows. So SQLite
    prepares only few different statements.
    """
    if not rows:
        return
    size = SQLITE_ROWS
    while size > max(1, len(rows) // 2):
        size //= 2
    many = (len(rows) - 1) // size * size
    if many:
        blocks = [tuple(chain.from_iterable(rows[n : n + size])) for n in range(0, many, size)]
        connection.exec_driver_sql(of_rows(statement, size), blocks)
    connection.exec_driver_sql(statement, list(map(tuple, rows[many:])))


def _is_gone(connection: Any) -> bool:
    """Return whether PostgreSQL has closed a connection. The check takes one round trip, outside any transaction."""
    try:
        connection.autocommit = True
        connection.execute("")
        connection.autocommit = False
    except Exception:  # noqa: BLE001 - whatever it is, another connection is made, which says what is wrong
        return True
    return False


def _set_up_sqlite(connection: sqlite3.Connection, *, writer: bool) -> None:
    # Without this the driver itself begins transactions, always DEFERRED ones.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS:d}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES if writer else 0:d}")
    if writer:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # Without this, INSERT OR REPLACE would not fire the triggers that refuse DELETE.
        connection.execute("PRAGMA recursive_triggers = ON")
        connection.execute("PRAGMA cache_size = -65536")
    else:
        connection.execute("PRAGMA query_only = ON")
