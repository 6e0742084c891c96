"""Checks that an audit database is still in its place: a mirror must not write into a copy as if it were the original.

A copy (pg_dump for staging, cp) has the audit id of the original, so Redis cannot distinguish the two. A mirror of the
copy would take the original's next events, and trim them in Redis.

So a database stores its place when a mirror first uses it. On PostgreSQL, the place is the system identifier and the
database's oid; on SQLite, the file system and the file's inode. (If the role may not read the system identifier, only
the oid is compared.)

In another place, :func:`check_identity` refuses the database until an operator decides. :func:`fork` makes the database
a new log; :func:`rebind` stores the new place.

This check cannot detect a copy of a whole server or disk (a physical standby, a snapshot of a virtual machine): such a
copy has the same place.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, TextClause, text
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
"""SQLSTATEs that mean that the user may not read PostgreSQL's system identifier: a right or the function is missing, as
at some hosting services."""
_UNKNOWN: Final = "unknown"


def database_place(database: Database) -> str:
    """Return a text that identifies where a database is: PostgreSQL's system identifier and the oid, or the SQLite
    file's inode.

    Raise the errors of its driver.
    """
    return place_of(database.readers)


def place_of(engine: Engine) -> str:
    """Return a text that identifies where an engine's database is: PostgreSQL's system identifier and the oid, or the
    SQLite file's inode.

    Raise the errors of its driver.
    """
    if engine.dialect.name == "sqlite":
        path = Path(engine.url.database or "")
        # st_dev is not used, since it may change when the machine starts again.
        return f"file {os.statvfs(path).f_fsid:x}/{path.stat().st_ino}"
    with engine.connect() as connection:
        oid = connection.execute(_OID).scalar_one()
    try:
        with engine.connect() as connection:
            system = connection.execute(_SYSTEM).scalar_one()
    except DBAPIError as error:
        # Any other error must not change the place.
        if getattr(error.orig, "sqlstate", None) not in _KEPT_BACK:
            raise
        system = _UNKNOWN
    return f"postgresql {system}/{oid}"


def check_identity(database: Database) -> None:
    """Check that a database is in its stored place, and so not a copy in another place. If no place is stored yet,
    store the current one.

    Raise AuditCopied if the database is in another place.
    """
    here = database_place(database)
    with database.readers.connect() as connection:
        bound = connection.execute(_PLACE).scalar_one()
    if bound is None:
        _write(database, _BIND, here)
        with database.readers.connect() as connection:
            bound = connection.execute(_PLACE).scalar_one()
    if is_less_known(bound, here):
        _write(database, _REBIND, here)
    elif bound != here and not is_less_known(here, bound):
        raise AuditCopied(url=database.url, bound=bound, here=here)


def is_less_known(one: str, other: str) -> bool:
    """Return whether two places may be the same: ``one`` has the same oid as ``other``, but no system identifier."""
    unknown, _, oid = one.partition("/")
    return unknown.endswith(f" {_UNKNOWN}") and one != other and other.endswith(f"/{oid}")


def rebind(database: Database) -> str:
    """Store a database's current place, because it was moved or restored, and return the place. A mirror then accepts
    it again.
    """
    here = database_place(database)
    _write(database, _REBIND, here)
    return here


def fork(database: Database) -> str:
    """Make a copied database a log of its own with a new audit id, and return the id.

    The chains of hashes continue with the original's chain id. The queues no longer belong to a Redis: any Redis that
    has a queue of the same name may be mirrored into the new log.
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
