"""The views of the audit database: rows with readable times, common queries, and losses."""

# ruff: noqa: S608 - views are joined from names of this module

from __future__ import annotations

from functools import partial
from typing import Final

from sql_audit.store.schema.pause_views import pause_views
from sql_audit.store.schema.tables import OUTCOMES, TICK_NAME, one_of


def views(dialect: str) -> dict[str, str]:
    """Return the statements that create the views in a dialect, by the name of the view."""
    made = _readable_views(dialect) | _everyday_views(dialect) | _loss_views() | _tick_view(dialect)
    return made | pause_views(dialect, partial(_readable, dialect))


def _readable(dialect: str, column: str) -> str:
    if dialect == "sqlite":
        return f"strftime('%Y-%m-%d %H:%M:%f', {column} / 1000.0, 'unixepoch')"
    return (
        f"to_char(to_timestamp({column} / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS')"
    )


def _readable_views(dialect: str) -> dict[str, str]:
    """Return the statements of the views with times as texts, such as ``2026-11-21 10:00:00.123``, by name."""
    at = {
        name: _readable(dialect, f"{name}_ms")
        for name in ("at", "enqueued_at", "ready_at", "claimed_at", "ended_at", "finished_at")
    }
    return {
        "job_event_readable": (
            "CREATE VIEW job_event_readable AS SELECT queue, epoch, seq, ordinal, "
            f"{at['at']} AS at, type, job_id, claim, worker, task, detail FROM job_event"
        ),
        "job_readable": (
            "CREATE VIEW job_readable AS SELECT queue, job_id, task, priority, state, claims, "
            f"failures, losses, {at['enqueued_at']} AS enqueued_at, "
            f"{at['finished_at']} AS finished_at, worker, reason, error_type, "
            "error_message, lane FROM job"
        ),
        "job_attempt_readable": (
            "CREATE VIEW job_attempt_readable AS SELECT queue, job_id, claim, fence, task, worker, "
            f"{at['ready_at']} AS ready_at, {at['claimed_at']} AS claimed_at, "
            f"{at['ended_at']} AS ended_at, waited_ms, ran_ms, outcome, error_type, scopes "
            "FROM job_attempt"
        ),
    }


def _tick_view(dialect: str) -> dict[str, str]:
    """Return the statement of the view of schedules' instants."""
    get = "json_extract(detail, '$.{}')" if dialect == "sqlite" else "detail::jsonb ->> '{}'"

    def number(name: str) -> str:
        return f"CAST({get.format(name)} AS BIGINT)"

    return {
        "schedule_tick": (
            f"CREATE VIEW schedule_tick AS SELECT queue, {TICK_NAME} AS name, "
            f"{number('version')} AS version, {number('nominal_ms')} AS nominal_ms, "
            f"{_readable(dialect, number('nominal_ms'))} AS nominal, "
            f"{number('due_ms')} AS due_ms, at_ms, {_readable(dialect, 'at_ms')} AS at, "
            f"at_ms - {number('due_ms')} AS late_ms, {get.format('outcome')} AS outcome, "
            f"{number('missed')} AS missed, job_id, {get.format('held_by')} AS held_by "
            "FROM job_event WHERE type = 'ticked'"
        )
    }


def _loss_views() -> dict[str, str]:
    """Return the statements of the views of Redis' losses, by name."""
    columns = "queue, kind, epoch, after_epoch, after_seq, events"
    of_f = ", ".join(f"f.{name}" for name in columns.split(", "))
    return {
        # Begins at the last epoch. Each step goes to the last entry that the epoch still knew. Each step goes to an
        # earlier epoch, regardless of the row's values, so the recursion ends.
        "orphaned_range": (
            f"CREATE VIEW orphaned_range AS WITH RECURSIVE past ({columns}) AS ("
            f"SELECT {of_f} FROM mirror_loss f WHERE f.kind <> 'restated' AND f.epoch = ("
            "SELECT MAX(g.epoch) FROM mirror_loss g WHERE g.queue = f.queue AND "
            "g.kind <> 'restated') UNION ALL "
            f"SELECT {of_f} FROM past p JOIN mirror_loss f ON f.queue = p.queue AND "
            "f.kind <> 'restated' AND f.epoch = (SELECT MAX(g.epoch) FROM mirror_loss g WHERE "
            "g.queue = p.queue AND g.kind <> 'restated' AND "
            "g.epoch < p.epoch AND g.epoch <= COALESCE(p.after_epoch, g.epoch))) "
            "SELECT queue, after_epoch, after_seq, epoch AS before_epoch, events FROM past "
            "WHERE kind = 'orphaned'"
        ),
        "job_event_orphaned": (
            "CREATE VIEW job_event_orphaned AS SELECT e.* FROM orphaned_range r JOIN job_event e "
            "ON e.queue = r.queue AND (e.epoch, e.seq) > (r.after_epoch, r.after_seq) AND "
            "(e.epoch, e.seq) < (r.before_epoch, 0)"
        ),
    }


_REPORTED: Final = "taken"
"""The field of an event ``cost_settled`` that has the job's real costs."""


def _everyday_views(dialect: str) -> dict[str, str]:
    """Return the statements of the views for common queries, by name; see docs/how-to/audit-log.md."""
    minute = _readable(dialect, "minute_ms")
    if dialect == "sqlite":
        each = "json_each(a.scopes) AS each"
        scope, cap = "json_extract(each.value, '$[0]')", "json_extract(each.value, '$[1]')"
        length = "json_array_length(each.value)"
        rest = f"substr({scope}, instr({scope}, '@') + 1)"
        unit = (
            f"substr({rest}, instr({rest}, ':') + 1, instr({rest}, '=') - instr({rest}, ':') - 1)"
        )
        counts_unit = f"{scope} GLOB '*@*s:*=*'"
        cost = "COALESCE(json_extract(each.value, '$[4]'), 1)"
        fence_of_cost, reported = (
            "json_extract(e.detail, '$.fence')",
            f"json_extract(e.detail, '$.{_REPORTED}')",
        )
        # A cast takes the digits up to the next comma.
        truth = (
            f"CASE WHEN instr(',' || {reported}, ',' || {unit} || ':') = 0 THEN {cost} "
            f"ELSE CAST(substr(',' || {reported}, "
            f"instr(',' || {reported}, ',' || {unit} || ':') + length({unit}) + 2) AS INTEGER) END"
        )
    else:
        each = "jsonb_array_elements(a.scopes::jsonb) AS each(value)"
        scope, cap = "each.value ->> 0", "(each.value ->> 1)::bigint"
        length = "jsonb_array_length(each.value)"
        unit = f"substring({scope} from '@[0-9.]+s:([A-Za-z0-9_]+)=')"
        counts_unit = f"{scope} ~ '@[0-9.]+s:[A-Za-z0-9_]+='"
        cost = "COALESCE((each.value ->> 4)::bigint, 1)"
        fence_of_cost, reported = (
            "(e.detail::jsonb ->> 'fence')",
            f"(e.detail::jsonb ->> '{_REPORTED}')",
        )
        truth = f"COALESCE(substring(',' || {reported} from ',' || {unit} || ':([0-9]+)')::bigint, {cost})"
    outcomes = one_of("outcome", OUTCOMES)
    return {
        "throughput_per_minute": (
            "CREATE VIEW throughput_per_minute AS SELECT queue, task, minute_ms, "
            f"{minute} AS minute, CAST(SUM(claims) AS BIGINT) AS succeeded FROM claim_minute "
            "WHERE outcome = 'succeeded' GROUP BY queue, task, minute_ms"
        ),
        "failures_by_error": (
            "CREATE VIEW failures_by_error AS SELECT queue, task, error_type, minute_ms, "
            f"{minute} AS minute, CAST(SUM(claims) AS BIGINT) AS claims, "
            "CAST(SUM(CASE WHEN outcome = 'died' THEN claims ELSE 0 END) AS BIGINT) AS died "
            "FROM claim_minute WHERE outcome IN ('retried', 'died') "
            "GROUP BY queue, task, error_type, minute_ms"
        ),
        "waiting_by_lane": (
            "CREATE VIEW waiting_by_lane AS SELECT queue, lane, COUNT(*) AS waiting, "
            f"{_readable(dialect, 'MIN(ready_at_ms)')} AS oldest_ready_at FROM job "
            "WHERE state = 'ready' AND finished_at_ms IS NULL GROUP BY queue, lane"
        ),
        "worker_utilisation": (
            "CREATE VIEW worker_utilisation AS SELECT queue, worker, minute_ms, "
            f"{minute} AS minute, CAST(SUM(claims) AS BIGINT) AS claims, CAST(SUM(ran_ms) AS BIGINT) AS busy_ms, "
            "SUM(ran_ms) / 60000.0 AS at_once, MAX(ran_max_ms) AS longest_ms FROM claim_minute "
            f"WHERE {outcomes} GROUP BY queue, worker, minute_ms"
        ),
        "unsuccessful_claims": (
            "CREATE VIEW unsuccessful_claims AS SELECT queue, job_id, claim, fence, task, worker, "
            f"{_readable(dialect, 'claimed_at_ms')} AS claimed_at, "
            f"{_readable(dialect, 'ended_at_ms')} AS ended_at, outcome, error_type, error_message, "
            "ended_at_ms FROM job_attempt WHERE outcome <> 'succeeded'"
        ),
        "scope_occupancy": (
            f"CREATE VIEW scope_occupancy AS SELECT a.queue, {scope} AS scope, COUNT(*) AS holders, "
            f"MAX({cap}) AS cap FROM job_attempt a, {each} "
            f"WHERE a.ended_at_ms IS NULL AND a.scopes IS NOT NULL AND {length} = 2 "
            f"GROUP BY a.queue, {scope}"
        ),
        "scope_cost": (
            f"CREATE VIEW scope_cost AS SELECT a.queue, {scope} AS scope, j.lane, {unit} AS unit, COUNT(*) AS claims, "
            f"CAST(SUM({cost}) AS BIGINT) AS estimated, "
            f"CAST(SUM(CASE WHEN e.detail IS NULL THEN {cost} ELSE {truth} END) AS BIGINT) AS taken, "
            "CAST(SUM(CASE WHEN e.detail IS NULL THEN 0 ELSE 1 END) AS BIGINT) AS settled "
            f"FROM job_attempt a JOIN job j ON j.queue = a.queue AND j.job_id = a.job_id CROSS JOIN {each} "
            "LEFT JOIN job_event e ON e.queue = a.queue AND e.job_id = a.job_id AND e.type = 'cost_settled' "
            f"AND {fence_of_cost} = a.fence "
            f"WHERE a.scopes IS NOT NULL AND {length} >= 4 AND {counts_unit} "
            f"GROUP BY a.queue, {scope}, j.lane, {unit}"
        ),
    }
