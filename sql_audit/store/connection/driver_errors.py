"""Interprets the errors of a database's driver.

This module finds out whether the content of rows caused an error, and why a SQLite file cannot be opened or written. It
also shortens messages.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import sqlite3
from functools import cache
from pathlib import Path
from typing import Any, Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from rq_core.masking import masked
from sql_audit.errors import AuditError, AuditRefused, AuditUnavailable, PlaceTaken
from sql_audit.store.schema.tables import EVERYDAY_INDEXES, metadata

_OF_SCHEMA: Final = frozenset({"22001", "22P05"})
"""SQLSTATEs of errors about a text that is too long for its column or not in the database's encoding. They mean that
the schema was changed: with the migration's columns and encoding, no row of the mirror causes them."""
_LOCKED: Final = ("SQLITE_BUSY", "SQLITE_LOCKED")
"""Prefixes of the names of SQLite's errors about a lock of another connection."""
_LOCK_TIMEOUT: Final = "55P03"
"""The SQLSTATE of the error that a lock was not free within PostgreSQL's ``lock_timeout``."""
_AWAY: Final = (*_LOCKED, "SQLITE_CANTOPEN", "SQLITE_IOERR")
"""Prefixes of the names of SQLite's errors whose cause is another process or the disk, and not the rows."""
_NOT_YET: Final = frozenset({"57P01", "57P02", "57P03", "53300"})
"""SQLSTATEs with which PostgreSQL says that it cannot serve at the moment: it is starting or shutting down, or has no
connection left."""
_NOT_YET_SIGNS: Final = (
    "the database system is", "too many clients", "too many connections", "remaining connection slots",
    "no more connections allowed", "terminating connection due to",
)  # fmt: skip
"""Parts of messages that mean the same as ``_NOT_YET``. PgBouncer writes "no more connections allowed", PostgreSQL the
others."""
_PARTITION: Final = re.compile(r"job_event_(?:default|\d{4}_\d\d)")


def data_refused(error: BaseException) -> bool:
    """Return whether the database refused rows because of their content, so that another try would fail, too.

    Return False if a column, a constraint or a trigger that an operator added refused the rows: the rows themselves are
    valid.
    """
    if isinstance(error, PlaceTaken):
        return True
    if isinstance(error, SQLAlchemyError):
        if not isinstance(error, DBAPIError) or error.orig is None:
            return False
        error = error.orig
    if isinstance(error, sqlite3.Error):
        return _sqlite_refused(error)
    if type(error).__module__.startswith("psycopg"):
        return _postgresql_refused(error)
    # Drivers raise these errors of Python for values that they cannot send. Any other error of Python is a bug of this
    # program: the rows are good.
    return isinstance(error, UnicodeError | OverflowError)


def _sqlite_refused(error: sqlite3.Error) -> bool:
    kind, (_, _, names) = getattr(error, "sqlite_errorname", ""), str(error).rpartition(": ")
    if kind == "SQLITE_CONSTRAINT_CHECK":
        return names in _names()
    if kind == "SQLITE_CONSTRAINT_NOTNULL":
        return _is_required(*names.split("."))
    if kind.startswith("SQLITE_CONSTRAINT"):
        return kind == "SQLITE_CONSTRAINT_PRIMARYKEY"
    of_value = isinstance(error, sqlite3.ProgrammingError) and "type" in str(error)
    return of_value or isinstance(error, sqlite3.DataError | sqlite3.InterfaceError)


def _postgresql_refused(error: Any) -> bool:
    state = error.sqlstate
    if state is None:
        return type(error).__name__ in {"DataError", "IntegrityError"}
    if state[:2] == "22":
        return state not in _OF_SCHEMA
    name = error.diag.constraint_name
    if state[:2] == "54":
        # A limit of PostgreSQL was exceeded, such as the length of an index's key.
        return name is None or _is_named(name)
    if state == "23502":
        return _is_required(error.diag.table_name or "", error.diag.column_name or "")
    return state[:2] == "23" and name is not None and _is_named(name)


def _is_named(name: str) -> bool:
    """Return whether the migration created a constraint or an index, or PostgreSQL copied one for a partition."""
    return name in _names() or _PARTITION.sub("job_event", name, count=1) in _names()


@cache
def _names() -> frozenset[str]:
    """Return the names of all constraints and indexes of the schema."""
    found = {each.partition(" ON ")[0].rpartition(" ")[2] for each in EVERYDAY_INDEXES}
    for table in metadata.tables.values():
        found |= {str(each.name) for each in table.constraints}
        found |= {f"{table.name}_pkey", *(str(index.name) for index in table.indexes)}
        # The names that PostgreSQL gives to a partition's part of an index.
        found |= {f"{table.name}_{'_'.join(index.columns.keys())}_idx" for index in table.indexes}
    return frozenset(found)


def _is_required(table: str, column: str) -> bool:
    """Return whether a column is NOT NULL in the migration's schema."""
    known = metadata.tables.get(_PARTITION.sub("job_event", table))
    return known is not None and column in known.columns and not known.columns[column].nullable


def failure(url: str, error: BaseException) -> AuditError:
    """Return AuditRefused for a driver's error if the database answered. Otherwise return AuditUnavailable."""
    if answered(error):
        return AuditRefused(why=describe_error(error))
    return AuditUnavailable(url=url, why=describe_error(error))


def answered(error: BaseException) -> bool:
    """Return whether the database answered with this error, so that it is reachable."""
    original = getattr(error, "orig", None) or error
    if isinstance(original, sqlite3.Error):
        return not getattr(original, "sqlite_errorname", "").startswith(_AWAY)
    # If PostgreSQL refuses a new connection, the error has only a text, no SQLSTATE.
    state, says = getattr(original, "sqlstate", None), str(original)
    if state in _NOT_YET or (state is None and any(sign in says for sign in _NOT_YET_SIGNS)):
        return False
    return state is not None or "FATAL:" in says


def is_locked(error: BaseException | None) -> bool:
    """Return whether a statement failed because another connection held a lock for too long."""
    original = getattr(error, "orig", None) or error
    of_sqlite = getattr(original, "sqlite_errorname", "").startswith(_LOCKED)
    return of_sqlite or getattr(original, "sqlstate", None) == _LOCK_TIMEOUT


def describe_error(error: BaseException) -> str:
    """Return the first line of an error's message, without the statement and its rows. Passwords are masked."""
    original = getattr(error, "orig", None) or error
    lines = str(original).strip().splitlines() or [type(original).__name__]
    return masked(" ".join(lines[0].split()))[:300]


_SIGNS: Final = ("readonly", "unable to open", "access permission")
BESIDE: Final = ("-wal", "-shm", "-mirror")
"""Suffixes of the names of the files beside a SQLite database: its write-ahead log, the log's index, the writers' lock
file."""


def is_about_rights(error: BaseException) -> bool:
    """Return whether an error means that a SQLite database's file could not be opened or written, because of missing
    rights or the file system.
    """
    if isinstance(error, sqlite3.OperationalError):
        return any(sign in str(error) for sign in _SIGNS)
    return isinstance(error, OSError) and error.errno in (
        errno.EACCES,
        errno.EPERM,
        errno.EISDIR,
        errno.EROFS,
    )


def missing(path: Path) -> str | None:
    """Return a sentence that says why this process cannot write the SQLite file; None if no reason is found."""
    directory = path.parent
    if not directory.is_dir():
        return f"there is no directory {directory}: make it first"
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        return f"the file system of {directory} is mounted read-only"
    if path.is_dir():
        return f"{path} is a directory"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"user {_user()} may not write into the directory {directory}, where SQLite keeps files beside it"
    for each in (path, *(path.with_name(path.name + end) for end in BESIDE)):
        if each.exists() and not os.access(each, os.W_OK | os.R_OK):
            return f"user {_user()} may not write the file {each}"
    return None


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
