"""What an error of a database's driver means: whether it is about the rows, and its first line."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from rq_core.masking import masked
from sql_audit.errors import PlaceTaken


def data_refused(error: BaseException) -> bool:
    """Whether an error is about the rows, so that trying again cannot help."""
    if isinstance(error, PlaceTaken):
        return True
    if isinstance(error, SQLAlchemyError):
        if not isinstance(error, DBAPIError) or error.orig is None:
            return False
        error = error.orig
    if isinstance(error, sqlite3.Error):
        return isinstance(
            error, sqlite3.DataError | sqlite3.IntegrityError | sqlite3.InterfaceError
        ) or (isinstance(error, sqlite3.ProgrammingError) and "type" in str(error))
    state = getattr(error, "sqlstate", None)
    if state is not None:
        # Data exceptions, constraint violations, limits of the program (a key too long for its
        # index).
        return str(state)[:2] in {"22", "23", "54"}
    if type(error).__module__.startswith("psycopg"):
        return type(error).__name__ in {"DataError", "IntegrityError"}
    # What drivers say as Python does, of values that they cannot even send. Any other error of Python is a bug of ours,
    # and the rows are good.
    return isinstance(error, UnicodeError | OverflowError)


def describe(error: BaseException) -> str:
    """The first line of what a driver says, without the statement and its rows."""
    original = getattr(error, "orig", None) or error
    lines = str(original).strip().splitlines() or [type(original).__name__]
    return masked(" ".join(lines[0].split()))[:300]
