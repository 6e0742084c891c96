"""Schema versions: what a database has, what this release needs, and the way from one to the
other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from sql_audit.database import Database, describe
from sql_audit.errors import (
    AuditEmpty,
    AuditUnavailable,
    SchemaAhead,
    SchemaBehind,
    SchemaForeign,
)
from sql_audit.schema import metadata

VERSION_TABLE: Final = "audit_schema_version"
"""Not alembic's own name, so that an application may keep its tables in the same database."""

_MIGRATION_LOCK: Final = 0x72712D61
"""Number of PostgreSQL's advisory lock under which a schema is migrated."""


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def needed() -> str:
    """The schema version of this release."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


def found(connection: Connection) -> str | None:
    """The schema version of a database; None if it has none of our tables.

    Raises SchemaForeign if it has such tables, but they are not ours.
    """
    options = {"version_table": VERSION_TABLE}
    revision = MigrationContext.configure(connection, opts=options).get_current_revision()
    if revision is None:
        foreign = set(inspect(connection).get_table_names()) & set(metadata.tables)
        if foreign:
            url = connection.engine.url.render_as_string()
            raise SchemaForeign(url=url, tables=", ".join(sorted(foreign)))
    return revision


def upgrade(url: str | Database, revision: str = "head") -> str:
    """Bring a database to this release's schema, creating it if need be. Returns the version it has
    now.

    Raises AuditUnavailable, SchemaAhead or SchemaForeign.
    """
    return _migrate(url, revision, up=True)


def downgrade(url: str | Database, revision: str = "base") -> str:
    """Take a database back to an earlier schema. What that schema cannot hold is lost."""
    return _migrate(url, revision, up=False)


def _migrate(url: str | Database, revision: str, *, up: bool) -> str:
    database = url if isinstance(url, Database) else Database(url)
    try:
        with database.writing(wait=True) as connection:
            assert connection is not None
            if database.dialect == "postgresql":
                # Two mirrors may meet a new database at the same moment.
                connection.execute(
                    text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK}
                )
            current = found(connection)
            _refuse_ahead(database, current)
            config = _config()
            config.attributes["connection"] = connection
            (command.upgrade if up else command.downgrade)(config, revision)
            result = found(connection) or "none"
            connection.commit()
    except DBAPIError as error:
        raise AuditUnavailable(url=database.url, why=describe(error)) from error
    finally:
        if database is not url:
            database.close()
    return result


def _refuse_ahead(database: Database, current: str | None) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if current is not None and current not in known:
        raise SchemaAhead(url=database.url, found=current, needed=needed())


def check_current(url: str | Database) -> None:
    """Make sure that a database has this release's schema.

    Raises AuditEmpty, SchemaBehind (which says what to run), SchemaAhead, SchemaForeign or
    AuditUnavailable.
    """
    database = url if isinstance(url, Database) else Database(url)
    try:
        if database.dialect == "sqlite" and not database.path.exists():
            raise AuditEmpty(url=database.url)
        with database.readers.connect() as connection:
            current = found(connection)
    except DBAPIError as error:
        raise AuditUnavailable(url=database.url, why=describe(error)) from error
    finally:
        if database is not url:
            database.close()
    if current is None:
        raise AuditEmpty(url=database.url)
    _refuse_ahead(database, current)
    if current != needed():
        raise SchemaBehind(url=database.url, found=current, needed=needed())


def ensure(database: Database) -> None:
    """Create the schema in a database that has none; check it in one that has. For the mirror.

    Raises as :func:`check_current` does, but for AuditEmpty.
    """
    try:
        check_current(database)
    except AuditEmpty:
        upgrade(database)
