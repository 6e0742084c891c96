"""Everyday questions without reading everything: claims counted by the minute, and indexes.

Revision ID: 0008
Revises: 0007
Create Date: 2026-11-21

The claims that ended are counted once, which reads all of them.
"""

# ruff: noqa: S608 - statements are joined from names of this module

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

LASTED = "ended_at_ms - COALESCE(ready_at_ms, claimed_at_ms, ended_at_ms)"
BOUNDS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
SPAN = (
    "CASE "
    + " ".join(f"WHEN {LASTED} < {bound} THEN {k}" for k, bound in enumerate(BOUNDS))
    + f" ELSE {len(BOUNDS)} END"
)
INDEXES = {
    "job_attempt_span": (
        f"job_attempt (queue, ({SPAN}), ended_at_ms) WHERE ended_at_ms IS NOT NULL"
    ),
    "job_attempt_open": "job_attempt (queue, claimed_at_ms) WHERE ended_at_ms IS NULL",
    "job_attempt_failed": "job_attempt (outcome, ended_at_ms) WHERE outcome <> 'succeeded'",
    "job_alive": "job (state, queue) WHERE finished_at_ms IS NULL",
    "job_cancelled": "job (queue, finished_at_ms) WHERE state = 'cancelled'",
    "job_claimed_again": "job (claims) WHERE claims > 1",
}
KEY = ("outcome", "minute_ms", "queue", "task", "worker", "error_type")
COUNTS = ("claims", "waited_ms", "waited_max_ms", "ran_ms", "ran_max_ms")
CHANGED = ("throughput_per_minute", "failures_by_error", "waiting_by_lane", "worker_utilisation")
OUTCOMES = "('lease_expired', 'cancelled', 'succeeded', 'retried', 'died', 'rolled_back', 'lost')"


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    columns: list[Any] = [
        sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=False)
        if name.endswith("_ms") or name in COUNTS
        else sa.Column(name, sa.Text(), nullable=False)
        for name in (*KEY, *COUNTS)
    ]
    op.create_table(
        "claim_minute",
        *columns,
        sa.PrimaryKeyConstraint(*KEY, name="claim_minute_pkey"),
        sqlite_with_rowid=False,
    )
    op.execute(
        f"INSERT INTO claim_minute ({', '.join((*KEY, *COUNTS))}) SELECT outcome, "
        "ended_at_ms - ended_at_ms % 60000, queue, COALESCE(task, ''), COALESCE(worker, ''), "
        "COALESCE(error_type, ''), COUNT(*), COALESCE(SUM(waited_ms), 0), "
        "COALESCE(MAX(waited_ms), 0), COALESCE(SUM(ran_ms), 0), COALESCE(MAX(ran_ms), 0) "
        "FROM job_attempt WHERE outcome IS NOT NULL AND ended_at_ms IS NOT NULL "
        "GROUP BY 1, 2, 3, 4, 5, 6"
    )
    for name, rows in INDEXES.items():
        _ddl(f"CREATE INDEX {name} ON {rows}")
    for view in CHANGED:
        _ddl(f"DROP VIEW {view}")
    for statement in _views(dialect):
        _ddl(statement)


def downgrade() -> None:
    dialect = op.get_bind().dialect.name
    for view in (*CHANGED, "unsuccessful_claims"):
        _ddl(f"DROP VIEW {view}")
    for statement in _old_views(dialect):
        _ddl(statement)
    for name in INDEXES:
        _ddl(f"DROP INDEX {name}")
    op.drop_table("claim_minute")


def _ddl(statement: str) -> None:
    # DDL() fills % itself, so every one is doubled; text() would take colons for parameters.
    op.execute(sa.DDL(statement.replace("%", "%%")))  # type: ignore[no-untyped-call]


def _readable(dialect: str, at_ms: str) -> str:
    if dialect == "sqlite":
        return f"strftime('%Y-%m-%d %H:%M:%f', {at_ms} / 1000.0, 'unixepoch')"
    return f"to_char(to_timestamp({at_ms} / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS')"


def _views(dialect: str) -> list[str]:
    minute = _readable(dialect, "minute_ms")
    return [
        (
            "CREATE VIEW throughput_per_minute AS SELECT queue, task, minute_ms, "
            f"{minute} AS minute, CAST(SUM(claims) AS BIGINT) AS succeeded FROM claim_minute "
            "WHERE outcome = 'succeeded' GROUP BY queue, task, minute_ms"
        ),
        (
            "CREATE VIEW failures_by_error AS SELECT queue, task, error_type, minute_ms, "
            f"{minute} AS minute, CAST(SUM(claims) AS BIGINT) AS claims, "
            "CAST(SUM(CASE WHEN outcome = 'died' THEN claims ELSE 0 END) AS BIGINT) AS died "
            "FROM claim_minute WHERE outcome IN ('retried', 'died') "
            "GROUP BY queue, task, error_type, minute_ms"
        ),
        (
            "CREATE VIEW waiting_by_lane AS SELECT queue, lane, COUNT(*) AS waiting, "
            f"{_readable(dialect, 'MIN(ready_at_ms)')} AS oldest_ready_at FROM job "
            "WHERE state = 'ready' AND finished_at_ms IS NULL GROUP BY queue, lane"
        ),
        (
            "CREATE VIEW worker_utilisation AS SELECT queue, worker, minute_ms, "
            f"{minute} AS minute, CAST(SUM(claims) AS BIGINT) AS claims, CAST(SUM(ran_ms) AS BIGINT) AS busy_ms, "
            "SUM(ran_ms) / 60000.0 AS at_once, MAX(ran_max_ms) AS longest_ms FROM claim_minute "
            f"WHERE outcome IN {OUTCOMES} GROUP BY queue, worker, minute_ms"
        ),
        (
            "CREATE VIEW unsuccessful_claims AS SELECT queue, job_id, claim, fence, task, worker, "
            f"{_readable(dialect, 'claimed_at_ms')} AS claimed_at, "
            f"{_readable(dialect, 'ended_at_ms')} AS ended_at, outcome, error_type, error_message, "
            "ended_at_ms FROM job_attempt WHERE outcome <> 'succeeded'"
        ),
    ]


def _old_views(dialect: str) -> list[str]:
    minute = _readable(dialect, "at_ms / 60000 * 60000")
    return [
        (
            "CREATE VIEW throughput_per_minute AS SELECT queue, task, "
            f"{minute} AS minute, COUNT(*) AS succeeded FROM job_event "
            "WHERE type = 'succeeded' GROUP BY queue, task, at_ms / 60000"
        ),
        (
            "CREATE VIEW failures_by_error AS SELECT queue, task, error_type, COUNT(*) AS claims, "
            "COUNT(DISTINCT job_id) AS jobs, SUM(CASE WHEN outcome = 'died' THEN 1 ELSE 0 END) AS "
            f"died, {_readable(dialect, 'MAX(ended_at_ms)')} AS last_at FROM job_attempt "
            "WHERE outcome IN ('retried', 'died') GROUP BY queue, task, error_type"
        ),
        (
            "CREATE VIEW waiting_by_lane AS SELECT queue, lane, COUNT(*) AS waiting, "
            f"{_readable(dialect, 'MIN(ready_at_ms)')} AS oldest_ready_at FROM job "
            "WHERE state = 'ready' GROUP BY queue, lane"
        ),
        (
            "CREATE VIEW worker_utilisation AS SELECT queue, worker, COUNT(*) AS claims, "
            "SUM(CASE WHEN ended_at_ms IS NULL THEN 1 ELSE 0 END) AS in_force, "
            "SUM(ran_ms) AS busy_ms, MAX(ended_at_ms) - MIN(claimed_at_ms) AS span_ms, "
            "1.0 * SUM(ran_ms) / NULLIF(MAX(ended_at_ms) - MIN(claimed_at_ms), 0) AS at_once "
            "FROM job_attempt WHERE worker IS NOT NULL GROUP BY queue, worker"
        ),
    ]
