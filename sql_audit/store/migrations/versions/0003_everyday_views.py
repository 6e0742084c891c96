"""Views for everyday questions: throughput, failures, waiting, workers, scopes.

Revision ID: 0003
Revises: 0002
Create Date: 2026-11-21
"""

# ruff: noqa: S608 - views are joined from names of this module

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

VIEWS = (
    "throughput_per_minute",
    "failures_by_error",
    "waiting_by_lane",
    "worker_utilisation",
    "scope_occupancy",
)


def upgrade() -> None:
    for statement in _views(op.get_bind().dialect.name):
        _ddl(statement)


def downgrade() -> None:
    for view in VIEWS:
        _ddl(f"DROP VIEW {view}")


def _ddl(statement: str) -> None:
    # DDL() fills % itself, so every one is doubled; text() would take colons for parameters.
    op.execute(sa.DDL(statement.replace("%", "%%")))  # type: ignore[no-untyped-call]


def _readable(dialect: str, at_ms: str) -> str:
    if dialect == "sqlite":
        return f"strftime('%Y-%m-%d %H:%M:%f', {at_ms} / 1000.0, 'unixepoch')"
    return f"to_char(to_timestamp({at_ms} / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS')"


def _views(dialect: str) -> list[str]:
    minute = _readable(dialect, "at_ms / 60000 * 60000")
    if dialect == "sqlite":
        each = "json_each(a.scopes) AS each"
        scope, cap = "json_extract(each.value, '$[0]')", "json_extract(each.value, '$[1]')"
        length = "json_array_length(each.value)"
    else:
        each = "jsonb_array_elements(a.scopes::jsonb) AS each(value)"
        scope, cap = "each.value ->> 0", "(each.value ->> 1)::bigint"
        length = "jsonb_array_length(each.value)"
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
        (
            f"CREATE VIEW scope_occupancy AS SELECT a.queue, {scope} AS scope, COUNT(*) AS holders, "
            f"MAX({cap}) AS cap FROM job_attempt a, {each} "
            f"WHERE a.ended_at_ms IS NULL AND a.scopes IS NOT NULL AND {length} = 2 "
            f"GROUP BY a.queue, {scope}"
        ),
    ]
