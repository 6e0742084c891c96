"""Audit databases with the schema of this release. Each is a copy of one migrated database.

Hundreds of tests need one, and a migration takes 0.2 s of processor time. `test_database.py` tests the migrations.
"""

import contextlib
import secrets
import sqlite3
from collections.abc import Iterator
from functools import cache

import psycopg
from psycopg import sql

from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from tests.kit import servers

TEMPLATE = "migrated"
_migrated_databases: set[tuple[str, int, str]] = set()
"""The databases that `create_migrated` made and that no test has used yet, by host, port and name."""


def lay_schema(database: Database) -> None:
    """Create the schema in an empty database, as `migrate.upgrade` does. No client may be connected."""
    audit_id = secrets.token_hex(16)
    # Each database has an identity, as if it had been migrated by itself.
    if database.dialect == "sqlite":
        # A statement and its commit would take 4 ms, which a thousand tests would wait for.
        migrated, other_id = _migrated_file()
        database.path.write_bytes(migrated.replace(other_id, audit_id.encode()))
        return
    host, port = database.address.host, database.address.port
    assert host is not None
    assert port is not None
    _migrate_template(host, port)
    name = database.address.database
    assert name is not None
    if (host, port, name) not in _migrated_databases:
        with _connect(host, port) as connection:
            connection.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(
                    sql.Identifier(name), sql.Identifier(TEMPLATE)
                )
            )
    _migrated_databases.discard((host, port, name))
    with database.writing(wait=True) as writing:
        assert writing is not None
        changed = writing.exec_driver_sql(f"UPDATE audit_meta SET audit_id = '{audit_id}'")
        assert changed.rowcount == 1
        writing.commit()


def create_migrated(server: servers.PostgresServer) -> str:
    """Create a database that already has the schema, and return its name. `lay_schema` does not create the schema in it
    again."""
    _migrate_template(server.HOST, server.port)
    name = server.create_database(TEMPLATE)
    _migrated_databases.add((server.HOST, server.port, name))
    return name


@contextlib.contextmanager
def copied(database: Database) -> Iterator[Database]:
    """Yield a copy of a database with all rows and the same audit id.

    The connections to the original are closed first, since PostgreSQL copies only a database without connections. A
    copy on PostgreSQL is removed after the block.
    """
    database.close()
    name = f"copy_{secrets.token_hex(6)}"
    if database.dialect == "sqlite":
        path = database.path.with_name(f"{name}.db")
        with contextlib.closing(sqlite3.connect(database.path)) as source:
            source.execute("VACUUM INTO ?", (str(path),))
        copy = Database(str(path))
        yield copy
        copy.close()
        return
    host, port, of = database.address.host, database.address.port, database.address.database
    assert host is not None
    assert port is not None
    assert of is not None
    identifier, original = sql.Identifier(name), sql.Identifier(of)
    with _connect(host, port) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(identifier, original))
        copy = Database(database.address.set(database=name))
        try:
            yield copy
        finally:
            copy.close()
            drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(identifier)
            connection.execute(drop)


@cache
def _migrated_file() -> tuple[bytes, bytes]:
    """Return the contents of a migrated SQLite file, and the audit id in it."""
    path = servers.private_directory("schema") / "audit.db"
    migrate.upgrade_schema(str(path))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        ((audit_id,),) = connection.execute("SELECT audit_id FROM audit_meta")
    migrated, found = path.read_bytes(), str(audit_id).encode()
    assert migrated.count(found) == 1
    return migrated, found


@cache
def _migrate_template(host: str, port: int) -> None:
    """Create the database with the schema on a server. The databases of tests are copies of it."""
    with _connect(host, port) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(TEMPLATE)))
    migrate.upgrade_schema(f"postgresql+psycopg://postgres@{host}:{port}/{TEMPLATE}")


def _connect(host: str, port: int) -> psycopg.Connection:
    return psycopg.connect(
        host=host, port=port, user="postgres", connect_timeout=5, autocommit=True
    )
