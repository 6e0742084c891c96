"""SQLite: the CHECKs of the large tables as chains of OR, which take no index of their words per row.

Revision ID: 0006
Revises: 0005
Create Date: 2026-11-21

SQLite cannot change a CHECK, so the tables are made anew and their rows copied.
"""

# ruff: noqa: S608 - statements are joined from names of this module

from __future__ import annotations

import re
from collections.abc import Callable

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TABLES = ("job_event", "job", "job_attempt")
IN_LIST = re.compile(r"CHECK \((\w+) IN \(('[^)]*')\)\)")
OR_CHAIN = re.compile(r"CHECK \((\w+) = '\w+'(?: OR \1 = '\w+')*\)")


def upgrade() -> None:
    _rewrite(lambda table: IN_LIST.sub(_as_chain, table))


def downgrade() -> None:
    _rewrite(lambda table: OR_CHAIN.sub(_as_list, table))


def _as_chain(found: re.Match[str]) -> str:
    column, words = found[1], found[2].split(", ")
    return f"CHECK ({' OR '.join(f'{column} = {word}' for word in words)})"


def _as_list(found: re.Match[str]) -> str:
    words = re.findall(r"'\w+'", found[0])
    return f"CHECK ({found[1]} IN ({', '.join(words)}))"


def _rewrite(change: Callable[[str], str]) -> None:
    """Make each table anew, as ``change`` says its statement; with its indexes and triggers, and all
    views, which must not stand meanwhile."""
    if op.get_bind().dialect.name != "sqlite":
        return
    views = _objects("type = 'view'")
    for name in views:
        _ddl(f"DROP VIEW {name}")
    for table in TABLES:
        (statement,) = _objects(f"type = 'table' AND name = '{table}'").values()
        company = _objects(f"type IN ('index', 'trigger') AND tbl_name = '{table}'")
        for name, made in company.items():
            _ddl(f"DROP {made.split()[1]} {name}")
        op.rename_table(table, f"{table}_before")
        _ddl(change(statement))
        op.execute(f"INSERT INTO {table} SELECT * FROM {table}_before")
        op.drop_table(f"{table}_before")
        for made in company.values():
            _ddl(made)
    for made in views.values():
        _ddl(made)


def _objects(condition: str) -> dict[str, str]:
    """The statements that made objects, by name, in the order of their making."""
    found = op.get_bind().exec_driver_sql(
        f"SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND {condition} ORDER BY rowid"
    )
    return {str(name): str(statement) for name, statement in found}


def _ddl(statement: str) -> None:
    # DDL() fills % itself, so every one is doubled; text() would take colons for parameters.
    op.execute(sa.DDL(statement.replace("%", "%%")))  # type: ignore[no-untyped-call]
