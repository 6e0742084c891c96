"""The first schema: events, jobs, claims, and the mirror's own books.

Revision ID: 0001
Revises:
Create Date: 2026-11-21
"""

# ruff: noqa: S608 - views and triggers are joined from names of this module

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY = ("job_event", "mirror_epoch", "mirror_batch", "quarantine")
TABLES = (
    "quarantine",
    "mirror_epoch",
    "mirror_batch",
    "mirror_cursor",
    "job_attempt",
    "job",
    "job_event",
    "audit_meta",
)
VIEWS = ("job_event_readable", "job_readable", "job_attempt_readable")


def upgrade() -> None:
    _create_tables()
    dialect = op.get_bind().dialect.name
    if dialect == "postgresql":
        _ddl(
            "CREATE OR REPLACE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME "
            "USING ERRCODE = 'restrict_violation'; END $$"
        )
    for table in APPEND_ONLY:
        for statement in _triggers(dialect, table):
            _ddl(statement)
    for statement in _views(dialect):
        _ddl(statement)
    meta = sa.table("audit_meta", sa.column("one"), sa.column("audit_id"))
    op.execute(meta.insert().values(one=1, audit_id=secrets.token_hex(16)))


def downgrade() -> None:
    for view in VIEWS:
        _ddl(f"DROP VIEW {view}")
    for table in TABLES:
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        _ddl("DROP FUNCTION audit_refuse()")


def _ddl(statement: str) -> None:
    # DDL() fills % itself, so every one is doubled; text() would take colons for parameters.
    op.execute(sa.DDL(statement.replace("%", "%%")))  # type: ignore[no-untyped-call]


def _triggers(dialect: str, table: str) -> list[str]:
    if dialect == "sqlite":
        return [
            f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            for verb in ("UPDATE", "DELETE")
        ]
    return [
        (
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION audit_refuse()"
        ),
        (
            f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse()"
        ),
    ]


def _readable(dialect: str, column: str) -> str:
    if dialect == "sqlite":
        return f"strftime('%Y-%m-%d %H:%M:%f', {column}_ms / 1000.0, 'unixepoch') AS {column}"
    return (
        f"to_char(to_timestamp({column}_ms / 1000.0) AT TIME ZONE 'UTC', "
        f"'YYYY-MM-DD HH24:MI:SS.MS') AS {column}"
    )


def _views(dialect: str) -> list[str]:
    at = {
        name: _readable(dialect, name)
        for name in ("at", "enqueued_at", "finished_at", "ready_at", "claimed_at", "ended_at")
    }
    return [
        (
            "CREATE VIEW job_event_readable AS SELECT queue, epoch, seq, ordinal, "
            f"{at['at']}, type, job_id, claim, worker, task, detail FROM job_event"
        ),
        (
            "CREATE VIEW job_readable AS SELECT queue, job_id, task, priority, state, claims, "
            f"failures, losses, {at['enqueued_at']}, {at['finished_at']}, worker, reason, "
            "error_type, error_message FROM job"
        ),
        (
            "CREATE VIEW job_attempt_readable AS SELECT queue, job_id, claim, fence, task, worker, "
            f"{at['ready_at']}, {at['claimed_at']}, {at['ended_at']}, waited_ms, ran_ms, outcome, "
            "error_type FROM job_attempt"
        ),
    ]


def _create_tables() -> None:
    op.create_table(
        "audit_meta",
        sa.Column("one", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("audit_id", sa.Text(), nullable=False),
        sa.CheckConstraint("one = 1", name="audit_meta_one_row"),
        sa.PrimaryKeyConstraint("one"),
    )
    op.create_table(
        "job",
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
        sa.CheckConstraint(
            "priority IN ('critical', 'high', 'normal', 'low')", name="job_priority"
        ),
        sa.CheckConstraint(
            "state IN ('scheduled', 'ready', 'running', 'cancelling', 'dead', 'cancelled', "
            "'pruned', 'succeeded', 'gone')",
            name="job_state",
        ),
        sa.CheckConstraint("complete IN (0, 1)", name="job_complete"),
        sa.PrimaryKeyConstraint("job_id", "queue", name="job_pkey"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "job_attempt",
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
        sa.CheckConstraint(
            "outcome IN ('lease_expired', 'cancelled', 'succeeded', 'retried', 'died', "
            "'rolled_back')",
            name="job_attempt_outcome",
        ),
        sa.PrimaryKeyConstraint("job_id", "queue", "fence", name="job_attempt_pkey"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "job_event",
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
        sa.CheckConstraint(
            "type IN ('enqueued', 'promoted', 'claimed', 'succeeded', 'retried', 'died', "
            "'rolled_back', 'lease_expired', 'cancel_requested', 'cancelled', 'requeued', "
            "'pruned', 'baseline', 'settlement_refused', 'paused', 'resumed', "
            "'policy_changed', 'epoch_started', 'quarantined')",
            name="job_event_type",
        ),
        sa.PrimaryKeyConstraint("queue", "epoch", "seq", "ordinal", name="job_event_pkey"),
        sqlite_with_rowid=False,
    )
    op.create_index("job_event_job", "job_event", ["job_id", "queue", "epoch", "seq"], unique=False)
    op.create_table(
        "mirror_batch",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("batch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("first_epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("first_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("last_epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("last_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("entries", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("events", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("prev", sa.Text(), nullable=False),
        sa.Column("head", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("queue", "batch", name="mirror_batch_pkey"),
    )
    op.create_table(
        "mirror_cursor",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("at_ms", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("anchor", sa.Text(), nullable=True),
        sa.Column("batch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("head", sa.Text(), nullable=False),
        sa.Column("entries", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("events", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("bytes", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("quarantined", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("gaps", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("trim_jobs", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("trim_bytes", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("queue", name="mirror_cursor_pkey"),
    )
    op.create_table(
        "mirror_epoch",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("old_epoch", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("old_seq", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("missing", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "kind IN ('started', 'joined', 'gap', 'changed', 'lost')", name="mirror_epoch_kind"
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("mirror_epoch_entry", "mirror_epoch", ["queue", "epoch", "seq"], unique=False)
    op.create_table(
        "quarantine",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("ordinal", sa.BigInteger(), autoincrement=False, nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint(
            "kind IN ('undecodable', 'sanitised', 'refused', 'conflict')", name="quarantine_kind"
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("quarantine_entry", "quarantine", ["queue", "epoch", "seq"], unique=False)
