"""Audit databases with this release's schema, as copies of one that was migrated.

To migrate one takes a fifth of a second of processor time, and the tests want hundreds. `test_database.py` is about the
migrations themselves.
"""

import secrets
import shutil
from functools import cache
from pathlib import Path

import psycopg
from psycopg import sql

from sql_audit.store import migrate
from sql_audit.store.database import Database
from tests.kit import servers

TEMPLATE = "migrated"


def lay_schema(database: Database) -> None:
    """Do to an empty database what `migrate.upgrade` does. Nobody may be connected to it."""
    audit_id = secrets.token_hex(16)
    if database.dialect == "sqlite":
        shutil.copyfile(_migrated_file(), database.path)
    else:
        host, port = database.address.host, database.address.port
        assert host is not None
        assert port is not None
        _migrate_template(host, port)
        name = database.address.database
        assert name is not None
        with _connect(host, port) as connection:
            connection.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(
                    sql.Identifier(name), sql.Identifier(TEMPLATE)
                )
            )
    # Each database has an identity, as if it had been migrated by itself.
    with database.writing(wait=True) as writing:
        assert writing is not None
        changed = writing.exec_driver_sql(f"UPDATE audit_meta SET audit_id = '{audit_id}'")
        assert changed.rowcount == 1
        writing.commit()


@cache
def _migrated_file() -> Path:
    path = servers.private_directory("schema") / "audit.db"
    migrate.upgrade(str(path))
    return path


@cache
def _migrate_template(host: str, port: int) -> None:
    """Make the template of a server."""
    with _connect(host, port) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(TEMPLATE)))
    migrate.upgrade(f"postgresql+psycopg://postgres@{host}:{port}/{TEMPLATE}")


def _connect(host: str, port: int) -> psycopg.Connection:
    return psycopg.connect(
        host=host, port=port, user="postgres", connect_timeout=5, autocommit=True
    )
