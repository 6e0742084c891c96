"""The audit database: its address, its connections, its transactions, and writing many rows at once.

No connection to PostgreSQL has a state of its own: each transaction says what holds for it, and leaves nothing. So the
database may be behind a pooler that gives a server's connection to others after each transaction (PgBouncer).

One writer at a time. On PostgreSQL that is the lock on a queue's cursor. On SQLite it is BEGIN IMMEDIATE, and also a
lock file: SQLite before 3.51.3 can damage its write-ahead log when one connection checkpoints while another writes, so
a connection that writes or checkpoints holds that file, and every other connection never checkpoints.

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
"""The time for which a connection to SQLite waits for another's lock."""

IDLE_TIMEOUT_MS: Final = 30_000
"""After how long PostgreSQL ends a transaction whose mirror has stopped, so that another may take
over."""

STALLED_MS: Final = 60_000
"""After how long a mirror that waits ends the transaction of one that has stopped within a COPY: to
PostgreSQL it is not idle, and no timeout of the server's ends it."""

CHECKPOINT_PAGES: Final = 4_000
"""Pages in SQLite's write-ahead log at which the writer checkpoints (16 MB)."""

SQLITE_ROWS: Final = 256
"""Rows in one INSERT into SQLite: a quarter less time than one by one."""

BACKGROUND_ROWS: Final = 500
"""Number of rows from which on a thread that works while SQLite inserts them is worth its start."""

PAUSE_S: Final = 1.0
"""Seconds of rest after which a connection to PostgreSQL is looked at before it is used."""

_LIBPQ: Final = re.compile(
    r"(?:^|\s)(?:host|hostaddr|port|dbname|user|password|passfile|service|sslmode)\s*=",
    re.IGNORECASE,
)
"""``host=… password=…``, as libpq reads it."""
_NO_SCHEME: Final = re.compile(r"[^/@:\s]*:.*@")
"""``user:password@host/database``."""

T = TypeVar("T")


def normalise(text: str) -> URL:
    """The URL of an audit database from what people write: a path, ``sqlite:///path``,
    ``postgresql://…``.

    Raises AuditUrlInvalid.
    """
    text = text.strip()
    if not text:
        raise AuditUrlInvalid(url=text, why="it is empty")
    if "://" not in text:
        # A file would have the password in its name.
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
        # Not while it is handled: the library's error would be the context of this one, and may repeat the whole URL.
        raise AuditUrlInvalid(url=text, why="it cannot be read as a URL")
    dialect = url.drivername.partition("+")[0]
    if dialect in ("postgres", "postgresql"):
        return url.set(drivername="postgresql+psycopg")
    if dialect != "sqlite":
        why = f"{dialect} is not supported, only sqlite and postgresql"
        raise AuditUrlInvalid(url=url.render_as_string(), why=why)
    if not url.database or url.database == ":memory:":
        raise AuditUrlInvalid(url=text, why="an audit log in memory would be lost")
    return url


class Database:
    """One audit database. Connects when it is first used. Safe to use from several threads."""

    def __init__(self, url: str | URL) -> None:
        """Raises AuditUrlInvalid, or AuditUnavailable if the driver is not installed."""
        self.address = normalise(url) if isinstance(url, str) else url
        self.dialect = self.address.get_backend_name()
        self.on_statement: Callable[[str], None] | None = None
        """Called with every statement, COPY included; for tests that count."""
        try:
            self.engine = self._make_engine(writer=True)
            self.readers = self._make_engine(writer=False)
            """Its connections only read."""
        except ModuleNotFoundError:
            raise AuditUnavailable(
                url=self.url, why=f"no driver is installed: {pip_install('postgres')}"
            ) from None

    @property
    def url(self) -> str:
        """The address for people: without its password."""
        if self.dialect == "sqlite":
            return masked(self.address.database or "")
        address = self.address.set(drivername="postgresql")
        return masked(address.render_as_string(hide_password=True))

    @property
    def path(self) -> Path:
        """The file of a SQLite database."""
        assert self.dialect == "sqlite"
        return Path(self.address.database or "")

    def snapshot(self) -> Connection:
        """A connection that only reads, and sees the database as it is at one moment."""
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
                    # A statement that is prepared belongs to a server's connection, which a pooler gives to others.
                    "prepare_threshold": None,
                    # Whatever the URL, the environment, the role and the database say.
                    "client_encoding": "UTF8",
                },
            )

            @event.listens_for(engine, "checkin")
            def note_use(_connection: Any, record: ConnectionPoolEntry) -> None:
                record.info["used"] = time.monotonic()

            @event.listens_for(engine, "checkout")
            def look_after_a_pause(connection: Any, record: Any, _proxy: Any) -> None:
                # The server may have ended it meanwhile (idle_session_timeout, a failover), which is no error.
                # Only the writer, which comes all the time, is spared the question.
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
                # Said by each BEGIN, and over with its transaction.
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
        """A transaction to write in, committed by :meth:`commit` or else rolled back.

        None if another process is writing (SQLite only; with ``wait``, waits for it instead).
        Raises sqlalchemy.exc.DBAPIError.
        """
        with contextlib.ExitStack() as stack:
            if self.dialect == "sqlite" and not stack.enter_context(self._lock_file(wait=wait)):
                yield None
                return
            connection = stack.enter_context(self.engine.connect())
            connection.begin()
            yield connection

    def end_stalled(self, older_than_ms: int = STALLED_MS) -> int:
        """End the connections of mirrors that have long been waited for within a COPY. Returns how
        many. (The server ends those that idle; SQLite has no server that could.)
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
        """Raise AuditNotWritable, or AuditUnavailable without a directory, if that is what an error of SQLite means."""
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
        """The rows of ``job`` for ``ids``, in one statement."""
        if self.dialect == "sqlite":
            bound = queue, json.dumps(ids)
            return connection.exec_driver_sql(SQLITE.JOBS, bound).fetchall()
        return connection.exec_driver_sql(POSTGRESQL.JOBS, (queue, ids)).fetchall()

    def insert_events(
        self, connection: Connection, rows: EventRows, meanwhile: Callable[[], T]
    ) -> T:
        """Append rows of job_event, in the order of their numbers. Returns what ``meanwhile`` does, which is called
        while the database works on them.
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
        """Write rows of ``job``: ``new`` have no row yet, ``old`` have one."""
        if self.dialect == "sqlite":
            _insert_many(connection, SQLITE.UPSERT_JOBS, [*new, *old])
            return
        if new:
            self._copy(connection, POSTGRESQL.COPY_JOBS, new.text())
        if old:
            self._stage(connection, POSTGRESQL.COPY_JOBS_STAGING, old)
            connection.exec_driver_sql(POSTGRESQL.UPDATE_JOBS)

    def put_attempts(self, connection: Connection, new: Rows, old: Rows) -> None:
        """Write rows of ``job_attempt``: ``new`` have no row yet, ``old`` may have one."""
        if self.dialect == "sqlite":
            _insert_many(connection, SQLITE.UPSERT_ATTEMPTS, [*new, *old])
            return
        if new:
            self._copy(connection, POSTGRESQL.COPY_ATTEMPTS, new.text())
        if old:
            self._stage(connection, POSTGRESQL.COPY_ATTEMPTS_STAGING, old)
            connection.exec_driver_sql(POSTGRESQL.END_ATTEMPTS)

    def count_minutes(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Add rows of ``claim_minute`` to what is counted."""
        if not rows:
            return
        if self.dialect == "sqlite":
            connection.exec_driver_sql(SQLITE.COUNT_MINUTES, list(rows))
            return
        # Those that count into the same row take its lock in the same order.
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
                # COPY goes past SQLAlchemy, which could not see that the connection is gone.
                connection.invalidate()
            raise


def _insert_many(connection: Connection, statement: str, rows: Sequence[Row]) -> None:
    """Insert rows into SQLite: most of them SQLITE_ROWS at a time, the last of them one by one.

    These are two statements whenever there are two rows or more. Fewer rows are taken in smaller powers of two, so
    that few statements are ever prepared.
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
    """Whether PostgreSQL has ended a connection. One exchange, outside of any transaction."""
    try:
        connection.autocommit = True
        connection.execute("")
        connection.autocommit = False
    except Exception:  # noqa: BLE001 - whatever it is, another connection is made, which says what is wrong
        return True
    return False


def _set_up_sqlite(connection: sqlite3.Connection, *, writer: bool) -> None:
    # Without this the driver itself begins transactions, and DEFERRED ones, whatever we say.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS:d}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES if writer else 0:d}")
    if writer:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # So that INSERT OR REPLACE, too, meets the triggers that refuse DELETE.
        connection.execute("PRAGMA recursive_triggers = ON")
        connection.execute("PRAGMA cache_size = -65536")
    else:
        connection.execute("PRAGMA query_only = ON")
