r"""Makes the GRANT statements for each role's rights in PostgreSQL. (On SQLite, only the file's mode counts.)

    print("\n".join(statements("mirror", user="mirror", database="audit", schema="public")))

The role ``owner`` creates the tables and the partitions of the coming months, and prunes. The other roles own nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sql_audit.store.connection.statements import VERSION_TABLE
from sql_audit.store.schema.tables import APPEND_ONLY, audit_meta, metadata
from sql_audit.store.schema.views import views

ROLES: Final = {
    "owner": "owns the tables: `audit migrate`, `audit prune`, the partitions of months to come",
    "mirror": "writes the log: `audit run`, `worker --audit`",
    "reader": "reads the log: `audit history`, `report`, `restore`, and `verify` without recording its result",
    "verifier": "a reader whose `audit verify` is recorded, for metrics and alerts",
}
"""The purpose of each role, by the role's name."""

_CHANGED: Final = ("job", "job_attempt", "claim_minute", "mirror_cursor", audit_meta.name)
_OF_OTHERS: Final = frozenset({"mirror_proof", "mirror_prune"})
_DELETED: Final = ("job", "job_attempt", "claim_minute")
"""The tables from which the mirror may delete rows: after a loss in Redis, it makes or counts these rows again."""


def statements(role: str, *, user: str, database: str, schema: str) -> Iterator[str]:
    """Yield the SQL statements that give ``user`` the rights of a role in ROLES.

    Execute the statements for ``owner`` first. After the tables were created, the owner or a superuser executes the
    others.
    """
    who, where, log = quoted(user), quoted(database), quoted(schema)
    yield f"ALTER ROLE {who} IN DATABASE {where} SET search_path = {log};"
    yield f"GRANT CONNECT ON DATABASE {where} TO {who};"
    if role == "owner":
        yield f"GRANT TEMPORARY ON DATABASE {where} TO {who};"
        yield f"GRANT USAGE, CREATE ON SCHEMA {log} TO {who};"
        return
    yield f"GRANT USAGE ON SCHEMA {log} TO {who};"
    tables = (*metadata.tables, VERSION_TABLE, *views("postgresql"))
    yield f"GRANT SELECT ON {qualified(schema, tables)} TO {who};"
    if role == "verifier":
        yield f"GRANT INSERT ON {qualified(schema, ('mirror_proof',))} TO {who};"
        yield f"GRANT USAGE ON SEQUENCE {qualified(schema, ('mirror_proof_id_seq',))} TO {who};"
    if role != "mirror":
        return
    yield f"GRANT TEMPORARY ON DATABASE {where} TO {who};"
    appended = [table for table in APPEND_ONLY if table.name not in _OF_OTHERS]
    written = dict.fromkeys((*(table.name for table in appended), *_CHANGED))
    yield f"GRANT INSERT ON {qualified(schema, tuple(written))} TO {who};"
    yield f"GRANT UPDATE ON {qualified(schema, _CHANGED)} TO {who};"
    yield f"GRANT DELETE ON {qualified(schema, _DELETED)} TO {who};"
    numbered = tuple(f"{table.name}_id_seq" for table in appended if "id" in table.columns)
    yield f"GRANT USAGE ON SEQUENCE {qualified(schema, numbered)} TO {who};"


def qualified(schema: str, names: tuple[str, ...]) -> str:
    """Return the names, each with its schema, as a comma-separated list for a statement."""
    return ", ".join(f"{quoted(schema)}.{quoted(name)}" for name in sorted(names))


def quoted(name: str) -> str:
    """Return a name as a quoted identifier."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
