"""Runs migrations for alembic, on the connection that :mod:`sql_audit.store.migrate` opened."""

from __future__ import annotations

from typing import Any

from alembic import context

from sql_audit.store.connection.statements import VERSION_TABLE
from sql_audit.store.schema.tables import EVERYDAY_INDEXES, metadata

EVERYDAY = {statement.split()[2] for statement in EVERYDAY_INDEXES}

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run `rq-core audit migrate --audit URL`, which opens the database itself")


def is_ours(name: str | None, kind: str, _parents: Any) -> bool:
    """Return whether alembic must compare the table or index ``name`` with the schema.

    Partitions (the mirror makes these), tables of other programs, and indexes of expressions are not compared.
    SQLAlchemy cannot read such indexes from SQLite.
    """
    if kind == "index":
        return name not in EVERYDAY
    return kind != "table" or name in metadata.tables


context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    include_name=is_ours,
    compare_type=True,
    compare_server_default=True,
    # BEGIN is sent to SQLite, too, so that a migration is executed completely or not at all.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
