"""The place of an audit database, and the check that it has not moved: a copy must not mirror under the original's
name.

A copy (pg_dump for staging, cp) has the same audit id, so Redis cannot tell it from the original: it would take the
original's next events, and have Redis trimmed of them. So a database remembers its place when it is first mirrored
into: PostgreSQL's system identifier and the database's oid, or the file system and the file's inode. (The role may lack
the right to ask for the identifier; then the oid alone is compared.) In another place
:func:`check_identity` refuses it, until an operator decides: :func:`fork` makes it a log of its own, :func:`rebind`
says that the log is here now.

What copies a whole server or disk (a physical standby, a snapshot of a virtual machine) copies the place, too.
"""

from __future__ import annotations

import os
import secrets
from typing import Final

from sqlalchemy import TextClause, text
from sqlalchemy.exc import DBAPIError

from sql_audit.errors import AuditCopied
from sql_audit.store.connection.database import Database

_PLACE: Final = text("SELECT place FROM audit_meta")
_BIND: Final = text("UPDATE audit_meta SET place = :place WHERE place IS NULL")
_REBIND: Final = text("UPDATE audit_meta SET place = :place")
_FORK: Final = text(
    "UPDATE audit_meta SET place = :place, chain_id = COALESCE(chain_id, audit_id), "
    "audit_id = :audit_id"
)
_NO_SOURCE: Final = text("UPDATE mirror_cursor SET prefix = NULL, stamp = NULL")
_SYSTEM: Final = text("SELECT system_identifier FROM pg_control_system()")
_OID: Final = text("SELECT oid FROM pg_database WHERE datname = current_database()")


_KEPT_BACK: Final = ("42501", "42883")
"""SQLSTATEs of a right that is missing and of a function that is: some services keep the identifier to themselves."""
_UNKNOWN: Final = "unknown"


def database_place(database: Database) -> str:
    """Return the place of a database. Raises what its driver raises."""
    if database.dialect == "sqlite":
        path = database.path
        # Not st_dev, which another start of the machine may number otherwise.
        return f"file {os.statvfs(path).f_fsid:x}/{path.stat().st_ino}"
    with database.readers.connect() as connection:
        oid = connection.execute(_OID).scalar_one()
    try:
        with database.readers.connect() as connection:
            system = connection.execute(_SYSTEM).scalar_one()
    except DBAPIError as error:
        # Whatever else is wrong does not show another place.
        if getattr(error.orig, "sqlstate", None) not in _KEPT_BACK:
            raise
        system = _UNKNOWN
    return f"postgresql {system}/{oid}"


def check_identity(database: Database) -> None:
    """Bind a database to its place, if it has none yet. Raises AuditCopied if it is bound to another."""
    here = database_place(database)
    with database.readers.connect() as connection:
        bound = connection.execute(_PLACE).scalar_one()
    if bound is None:
        _write(database, _BIND, here)
        with database.readers.connect() as connection:
            bound = connection.execute(_PLACE).scalar_one()
    if _less_known(bound, here):
        _write(database, _REBIND, here)
    elif bound != here and not _less_known(here, bound):
        raise AuditCopied(url=database.url, bound=bound, here=here)


def _less_known(one: str, other: str) -> bool:
    """Whether two places are the same, as far as one of them says: it lacks the system identifier."""
    unknown, _, oid = one.partition("/")
    return unknown.endswith(f" {_UNKNOWN}") and one != other and other.endswith(f"/{oid}")


def rebind(database: Database) -> str:
    """Say that the log is here now, after a move or a restore. Returns the place."""
    here = database_place(database)
    _write(database, _REBIND, here)
    return here


def fork(database: Database) -> str:
    """Make a copy a log of its own, with a name that Redis does not know yet. Returns that name.

    The chain of what was copied goes on from the original's name. Its queues have no source now: a Redis that has one
    of the same name may take it.
    """
    audit_id = secrets.token_hex(16)
    _write(database, _FORK, database_place(database), audit_id=audit_id)
    with database.writing(wait=True) as connection:
        assert connection is not None
        connection.execute(_NO_SOURCE)
        connection.commit()
    return audit_id


def _write(database: Database, statement: TextClause, place: str, **values: str) -> None:
    with database.writing(wait=True) as connection:
        assert connection is not None
        connection.execute(statement, {"place": place, **values})
        connection.commit()
