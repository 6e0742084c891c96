"""Retention: what verify has proven, what prune removed and its door, partitions by month.

Revision ID: 0005
Revises: 0004
Create Date: 2026-11-21

PostgreSQL's job_event becomes a partitioned table; its rows are copied, month by month.
"""

# ruff: noqa: S608 - statements are joined from names of this module

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

DOORS = {
    "job_event": ("epoch", "seq"),
    "mirror_batch": ("last_epoch", "last_seq"),
    "quarantine": ("epoch", "seq"),
}
VIEWS = ("job_event_readable", "throughput_per_minute", "job_event_orphaned")
KEY = "queue, epoch, seq, ordinal"


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    _create_tables()
    if dialect == "sqlite":
        for table in ("mirror_proof", "mirror_prune"):
            for verb in ("UPDATE", "DELETE"):
                _ddl(_sqlite_trigger(table, verb))
        for table, (epoch, seq) in DOORS.items():
            _ddl(f"DROP TRIGGER {table}_no_delete")
            shut = f"WHEN NOT {_open_door(f'OLD.{epoch}', f'OLD.{seq}')} "
            _ddl(_sqlite_trigger(table, "DELETE", shut))
        return
    _ddl(
        "CREATE OR REPLACE FUNCTION audit_refuse_unless_pruned() RETURNS trigger "
        "LANGUAGE plpgsql AS "
        "$$ DECLARE e bigint; s bigint; BEGIN IF TG_OP = 'DELETE' THEN "
        "IF TG_ARGV[0] = 'last_epoch' THEN e := OLD.last_epoch; s := OLD.last_seq; "
        "ELSE e := OLD.epoch; s := OLD.seq; END IF; "
        f"IF {_open_door('e', 's')} THEN RETURN OLD; END IF; END IF; "
        "RAISE EXCEPTION '% is append-only', TG_TABLE_NAME "
        "USING ERRCODE = 'restrict_violation'; END $$"
    )
    for table in ("mirror_proof", "mirror_prune"):
        _refuse(table, "audit_refuse()")
        _refuse_truncate(table)
    for table in ("mirror_batch", "quarantine"):
        _ddl(f"DROP TRIGGER {table}_append_only ON {table}")
        _refuse(table, f"audit_refuse_unless_pruned('{DOORS[table][0]}')")
    _partition()


def downgrade() -> None:
    """A log that was pruned stays as it is; the old release finds its chain broken where it was cut."""
    dialect = op.get_bind().dialect.name
    if dialect == "sqlite":
        for table in DOORS:
            _ddl(f"DROP TRIGGER {table}_no_delete")
            _ddl(_sqlite_trigger(table, "DELETE"))
    else:
        _unpartition()
        for table in ("mirror_batch", "quarantine"):
            _ddl(f"DROP TRIGGER {table}_append_only ON {table}")
            _refuse(table, "audit_refuse()")
        _ddl("DROP FUNCTION audit_refuse_unless_pruned()")
    op.drop_table("mirror_prune")
    op.drop_table("mirror_proof")


def _ddl(statement: str) -> None:
    # DDL() fills % itself, so every one is doubled; text() would take colons for parameters.
    op.execute(sa.DDL(statement.replace("%", "%%")))  # type: ignore[no-untyped-call]


def _sqlite_trigger(table: str, verb: str, shut: str = "") -> str:
    return (
        f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} {shut}"
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
    )


def _open_door(epoch: str, seq: str) -> str:
    return (
        "EXISTS (SELECT 1 FROM mirror_prune p WHERE p.kind = 'begun' AND p.id = "
        "(SELECT MAX(id) FROM mirror_prune WHERE queue = OLD.queue) "
        f"AND ({epoch}, {seq}) <= (p.epoch, p.seq))"
    )


def _refuse(table: str, function: str) -> None:
    _ddl(
        f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION {function}"
    )


def _refuse_truncate(table: str) -> None:
    _ddl(
        f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse()"
    )


def _take_apart() -> list[str]:
    """Put job_event aside as job_event_before. Returns what creates its views again."""
    found = op.get_bind().execute(
        sa.text("SELECT viewname, definition FROM pg_views WHERE viewname = ANY(:views)"),
        {"views": list(VIEWS)},
    )
    views = [f"CREATE VIEW {name} AS {definition.rstrip(';')}" for name, definition in found]
    for view in VIEWS:
        _ddl(f"DROP VIEW {view}")
    _ddl("ALTER TABLE job_event RENAME TO job_event_before")
    _ddl("ALTER TABLE job_event_before DROP CONSTRAINT job_event_pkey")
    _ddl("DROP INDEX job_event_job")
    return views


def _put_together(views: list[str]) -> None:
    _ddl("INSERT INTO job_event SELECT * FROM job_event_before")
    _ddl("DROP TABLE job_event_before")
    _ddl("CREATE INDEX job_event_job ON job_event (job_id, queue, epoch, seq)")
    for view in views:
        _ddl(view)


def _partition() -> None:
    views = _take_apart()
    _ddl(
        "CREATE TABLE job_event (LIKE job_event_before INCLUDING CONSTRAINTS) "
        "PARTITION BY RANGE (at_ms)"
    )
    _ddl(f"ALTER TABLE job_event ADD CONSTRAINT job_event_pkey PRIMARY KEY ({KEY}, at_ms)")
    _ddl("CREATE TABLE job_event_default PARTITION OF job_event DEFAULT")
    months = "SELECT DISTINCT to_char(to_timestamp(at_ms / 1000) AT TIME ZONE 'UTC', 'YYYYMM') "
    known = "FROM job_event_before WHERE at_ms BETWEEN 946684800000 AND 4102444799999 ORDER BY 1"
    for month in op.get_bind().execute(sa.text(months + known)).scalars().all():
        year, number = int(month[:4]), int(month[4:])
        begin, end = _ms(year, number), _ms(year + number // 12, number % 12 + 1)
        name = f"job_event_{year:04d}_{number:02d}"
        _ddl(f"CREATE TABLE {name} PARTITION OF job_event FOR VALUES FROM ({begin}) TO ({end})")
        _refuse_truncate(name)
    _put_together(views)
    _refuse("job_event", "audit_refuse_unless_pruned('epoch')")
    _refuse_truncate("job_event")
    _refuse_truncate("job_event_default")


def _unpartition() -> None:
    views = _take_apart()
    _ddl("CREATE TABLE job_event (LIKE job_event_before INCLUDING CONSTRAINTS)")
    _ddl(f"ALTER TABLE job_event ADD CONSTRAINT job_event_pkey PRIMARY KEY ({KEY})")
    _put_together(views)
    _refuse("job_event", "audit_refuse()")
    _refuse_truncate("job_event")


def _ms(year: int, month: int) -> int:
    return int(datetime(year, month, 1, tzinfo=UTC).timestamp()) * 1000


def _number(name: str, *, null: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=null)


def _create_tables() -> None:
    op.create_table(
        "mirror_proof",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        _number("at_ms"),
        sa.Column("verdict", sa.Text(), nullable=False),
        _number("epoch"),
        _number("seq"),
        _number("batch"),
        sa.Column("head", sa.Text(), nullable=False),
        _number("events"),
        sa.CheckConstraint("verdict IN ('holds', 'unknown')", name="mirror_proof_verdict"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("mirror_proof_queue", "mirror_proof", ["queue", "id"], unique=False)
    op.create_table(
        "mirror_prune",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        _number("at_ms"),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("rules", sa.Text(), nullable=False),
        _number("epoch"),
        _number("seq"),
        _number("cut_at_ms"),
        _number("batch"),
        sa.Column("head", sa.Text(), nullable=False),
        _number("through_entries"),
        _number("through_events"),
        _number("jobs", null=True),
        _number("events", null=True),
        _number("kept_events", null=True),
        sa.Column("kept_digest", sa.Text(), nullable=True),
        sa.CheckConstraint("kind IN ('begun', 'done')", name="mirror_prune_kind"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("mirror_prune_queue", "mirror_prune", ["queue", "id"], unique=False)
