"""Restored and removed jobs: events of their own, and a state.

Revision ID: 0007
Revises: 0006
Create Date: 2026-11-21

SQLite cannot change a CHECK, so there the tables are made anew and their rows copied.
"""

# ruff: noqa: S608 - statements are joined from names of this module

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

OLD_TYPES = (
    "enqueued", "discarded", "promoted", "claimed", "succeeded", "retried", "died", "rolled_back",
    "lease_expired", "cancel_requested", "cancelled", "requeued", "pruned", "baseline",
    "settlement_refused", "paused", "resumed", "policy_changed", "cap_changed", "epoch_started",
    "quarantined",
)  # fmt: skip
NEW_EVENTS = ("restored", "removed")
NEW_TYPES = (*OLD_TYPES[:13], *NEW_EVENTS, *OLD_TYPES[13:])
OLD_STATES = (
    "scheduled", "ready", "running", "cancelling", "dead", "discarded", "cancelled", "pruned",
    "succeeded", "gone", "lost",
)  # fmt: skip
NEW_STATES = (*OLD_STATES[:9], "removed", *OLD_STATES[9:])


def upgrade() -> None:
    _set_words("job_event", "type", OLD_TYPES, NEW_TYPES)
    _set_words("job", "state", OLD_STATES, NEW_STATES)


def downgrade() -> None:
    """Events that the old schema does not know keep their place, as quarantined; their batches' digests
    no longer hold. Removed jobs become ``gone``."""
    known = f"CASE WHEN type IN {_words(NEW_EVENTS)} THEN 'quarantined' ELSE type END"
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE job_event DISABLE TRIGGER job_event_append_only")
        op.execute(f"UPDATE job_event SET type = {known} WHERE type IN {_words(NEW_EVENTS)}")
        op.execute("ALTER TABLE job_event ENABLE TRIGGER job_event_append_only")
        op.execute("UPDATE job SET state = 'gone' WHERE state = 'removed'")
    _set_words("job_event", "type", NEW_TYPES, OLD_TYPES, known)
    gone = "CASE state WHEN 'removed' THEN 'gone' ELSE state END"
    _set_words("job", "state", NEW_STATES, OLD_STATES, gone)


def _words(words: tuple[str, ...]) -> str:
    return f"({', '.join(repr(word) for word in words)})"


def _ddl(statement: str) -> None:
    # DDL() fills % itself, so every one is doubled; text() would take colons for parameters.
    op.execute(sa.DDL(statement.replace("%", "%%")))  # type: ignore[no-untyped-call]


def _set_words(
    table: str, column: str, old: tuple[str, ...], new: tuple[str, ...], value: str | None = None
) -> None:
    """Let a column hold other words; ``value``: what those that it holds become, on SQLite."""
    if op.get_bind().dialect.name == "postgresql":
        name = f"{table}_{column}"
        op.drop_constraint(name, table, type_="check")
        op.create_check_constraint(name, table, f"{column} IN {_words(new)}")
        return
    bind = op.get_bind()
    found = bind.exec_driver_sql(
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND "
        "(type = 'view' OR tbl_name = ? AND type IN ('index', 'trigger'))",
        (table,),
    )
    # Views must not stand while their tables are made anew; the others go with the table.
    around = [tuple(map(str, row)) for row in found]
    ((made,),) = bind.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = ?", (table,))
    columns = [c["name"] for c in sa.inspect(bind).get_columns(table)]
    values = [value if value is not None and name == column else name for name in columns]
    before, after = (" OR ".join(f"{column} = {word!r}" for word in words) for words in (old, new))
    if made.count(f"({before})") != 1:
        raise ValueError(f"the CHECK of {table}.{column} is not that of revision 0006: {made}")
    for kind, name, _ in around:
        _ddl(f"DROP {kind} {name}")
    op.rename_table(table, f"{table}_before")
    _ddl(made.replace(f"({before})", f"({after})"))
    _ddl(
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} FROM {table}_before"
    )
    op.drop_table(f"{table}_before")
    for _, _, statement in around:
        _ddl(statement)
