"""Caps: events of their own, the lane of a job, the scopes of a claim.

Revision ID: 0002
Revises: 0001
Create Date: 2026-11-21

SQLite cannot change a CHECK, so there the tables are made anew and their rows copied.
"""

# ruff: noqa: S608 - statements are joined from names of this module

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

VIEWS = ("job_event_readable", "job_readable", "job_attempt_readable")
NEW_EVENTS = ("discarded", "cap_changed")

OLD_TYPES = (
    "enqueued", "promoted", "claimed", "succeeded", "retried", "died", "rolled_back",
    "lease_expired", "cancel_requested", "cancelled", "requeued", "pruned", "baseline",
    "settlement_refused", "paused", "resumed", "policy_changed", "epoch_started", "quarantined",
)  # fmt: skip
NEW_TYPES = (
    "enqueued", "discarded", "promoted", "claimed", "succeeded", "retried", "died", "rolled_back",
    "lease_expired", "cancel_requested", "cancelled", "requeued", "pruned", "baseline",
    "settlement_refused", "paused", "resumed", "policy_changed", "cap_changed", "epoch_started",
    "quarantined",
)  # fmt: skip
OLD_STATES = (
    "scheduled", "ready", "running", "cancelling", "dead", "cancelled", "pruned", "succeeded",
    "gone",
)  # fmt: skip
NEW_STATES = (
    "scheduled", "ready", "running", "cancelling", "dead", "discarded", "cancelled", "pruned",
    "succeeded", "gone",
)  # fmt: skip
OUTCOMES = ("lease_expired", "cancelled", "succeeded", "retried", "died", "rolled_back")
PRIORITIES = ("critical", "high", "normal", "low")


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    _drop_views()
    if dialect == "sqlite":
        _rebuild("job_event", _event_table(NEW_TYPES))
        _rebuild("job", _job_table(NEW_STATES, lane=True))
        _rebuild("job_attempt", _attempt_table(scopes=True))
        _index_and_refuse()
    else:
        _set_check("job_event", "job_event_type", "type", NEW_TYPES)
        _set_check("job", "job_state", "state", NEW_STATES)
        op.add_column("job", sa.Column("lane", sa.Text(), nullable=True))
        op.add_column("job_attempt", sa.Column("scopes", sa.Text(), nullable=True))
    _create_views(dialect, lane=", lane", scopes=", scopes")


def downgrade() -> None:
    """Events that the old schema does not know keep their place, as quarantined; their batches' digests
    no longer hold. A job that was never in Redis has no row there."""
    dialect = op.get_bind().dialect.name
    _drop_views()
    known = "CASE WHEN type IN " + _words(NEW_EVENTS) + " THEN 'quarantined' ELSE type END"
    op.execute("DELETE FROM job WHERE state = 'discarded'")
    if dialect == "sqlite":
        _rebuild("job_event", _event_table(OLD_TYPES), {"type": known})
        _rebuild("job", _job_table(OLD_STATES, lane=False))
        _rebuild("job_attempt", _attempt_table(scopes=False))
        _index_and_refuse()
    else:
        op.execute("ALTER TABLE job_event DISABLE TRIGGER job_event_append_only")
        op.execute(f"UPDATE job_event SET type = {known} WHERE type IN " + _words(NEW_EVENTS))
        op.execute("ALTER TABLE job_event ENABLE TRIGGER job_event_append_only")
        _set_check("job_event", "job_event_type", "type", OLD_TYPES)
        _set_check("job", "job_state", "state", OLD_STATES)
        op.drop_column("job", "lane")
        op.drop_column("job_attempt", "scopes")
    _create_views(dialect, lane="", scopes="")


def _words(words: tuple[str, ...]) -> str:
    return f"({', '.join(repr(word) for word in words)})"


def _ddl(statement: str) -> None:
    # DDL() fills % itself, so every one is doubled; text() would take colons for parameters.
    op.execute(sa.DDL(statement.replace("%", "%%")))  # type: ignore[no-untyped-call]


def _set_check(table: str, name: str, column: str, words: tuple[str, ...]) -> None:
    op.drop_constraint(name, table, type_="check")
    op.create_check_constraint(name, table, f"{column} IN {_words(words)}")


def _rebuild(table: str, parts: list[Any], changed: dict[str, str] | None = None) -> None:
    """Make a table anew and copy its rows; ``changed``: what a column becomes."""
    if table == "job_event":
        op.drop_index("job_event_job", "job_event")
    op.rename_table(table, f"{table}_before")
    op.create_table(table, *parts, sqlite_with_rowid=False)
    old = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(f"{table}_before")}
    names = [part.name for part in parts if isinstance(part, sa.Column) and part.name in old]
    values = [(changed or {}).get(name, name) for name in names]
    op.execute(
        f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)} FROM {table}_before"
    )
    op.drop_table(f"{table}_before")


def _index_and_refuse() -> None:
    op.create_index("job_event_job", "job_event", ["job_id", "queue", "epoch", "seq"], unique=False)
    for verb in ("UPDATE", "DELETE"):
        _ddl(
            f"CREATE TRIGGER job_event_no_{verb.lower()} BEFORE {verb} ON job_event "
            "BEGIN SELECT RAISE(ABORT, 'job_event is append-only'); END"
        )


def _event_table(types: tuple[str, ...]) -> list[Any]:
    return [
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("ordinal", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("claim", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("task", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.CheckConstraint(f"type IN {_words(types)}", name="job_event_type"),
        sa.PrimaryKeyConstraint("queue", "epoch", "seq", "ordinal", name="job_event_pkey"),
    ]


def _job_table(states: tuple[str, ...], *, lane: bool) -> list[Any]:
    return [
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=True),
        sa.Column("priority", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("claims", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("failures", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("losses", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("unknown", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("max_attempts", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("max_losses", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("enqueued_at_ms", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("due_ms", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("ready_at_ms", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("claimed_at_ms", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("finished_at_ms", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("since_ms", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("fence", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("error_type", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("complete", sa.SmallInteger(), nullable=False),
        sa.Column("last_epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("last_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        *([sa.Column("lane", sa.Text(), nullable=True)] if lane else ()),
        sa.CheckConstraint(f"priority IN {_words(PRIORITIES)}", name="job_priority"),
        sa.CheckConstraint(f"state IN {_words(states)}", name="job_state"),
        sa.CheckConstraint("complete IN (0, 1)", name="job_complete"),
        sa.PrimaryKeyConstraint("job_id", "queue", name="job_pkey"),
    ]


def _attempt_table(*, scopes: bool) -> list[Any]:
    return [
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("fence", sa.Text(), nullable=False),
        sa.Column("claim", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("task", sa.Text(), nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("ready_at_ms", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("claimed_at_ms", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("ended_at_ms", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("waited_ms", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("ran_ms", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("error_type", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        *([sa.Column("scopes", sa.Text(), nullable=True)] if scopes else ()),
        sa.CheckConstraint(f"outcome IN {_words(OUTCOMES)}", name="job_attempt_outcome"),
        sa.PrimaryKeyConstraint("job_id", "queue", "fence", name="job_attempt_pkey"),
    ]


def _drop_views() -> None:
    for view in VIEWS:
        _ddl(f"DROP VIEW {view}")


def _readable(dialect: str, column: str) -> str:
    if dialect == "sqlite":
        return f"strftime('%Y-%m-%d %H:%M:%f', {column}_ms / 1000.0, 'unixepoch') AS {column}"
    return (
        f"to_char(to_timestamp({column}_ms / 1000.0) AT TIME ZONE 'UTC', "
        f"'YYYY-MM-DD HH24:MI:SS.MS') AS {column}"
    )


def _create_views(dialect: str, *, lane: str, scopes: str) -> None:
    at = {
        name: _readable(dialect, name)
        for name in ("at", "enqueued_at", "finished_at", "ready_at", "claimed_at", "ended_at")
    }
    _ddl(
        "CREATE VIEW job_event_readable AS SELECT queue, epoch, seq, ordinal, "
        f"{at['at']}, type, job_id, claim, worker, task, detail FROM job_event"
    )
    _ddl(
        "CREATE VIEW job_readable AS SELECT queue, job_id, task, priority, state, claims, "
        f"failures, losses, {at['enqueued_at']}, {at['finished_at']}, worker, reason, "
        f"error_type, error_message{lane} FROM job"
    )
    _ddl(
        "CREATE VIEW job_attempt_readable AS SELECT queue, job_id, claim, fence, task, worker, "
        f"{at['ready_at']}, {at['claimed_at']}, {at['ended_at']}, waited_ms, ran_ms, outcome, "
        f"error_type{scopes} FROM job_attempt"
    )
