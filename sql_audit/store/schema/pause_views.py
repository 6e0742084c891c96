"""The views of the pauses of scopes: who or what paused each scope, and the failures behind the pause of a breaker."""

# ruff: noqa: S608 - views are joined from names of this module

from __future__ import annotations

from collections.abc import Callable

from rq_core.model.limits.limit import FOREVER_MS
from sql_audit.store.schema.tables import IS_PAUSE, SCOPE_OF_PAUSE, in_dialect


def pause_views(dialect: str, readable: Callable[[str], str]) -> dict[str, str]:
    """Return the statements that create the views, by name. ``readable`` returns the SQL that makes a text of a time in
    Unix ms."""
    if dialect == "sqlite":
        get, error = "json_extract({}.detail, '$.{}')", "json_extract({}.detail, '$.error.{}')"
        window = (
            "(SELECT json_extract(each.value, '$[2]') FROM json_each(a.scopes) AS each "
            "WHERE json_extract(each.value, '$[0]') = {})"
        )
    else:
        get, error = "({}.detail::jsonb ->> '{}')", "({}.detail::jsonb -> 'error' ->> '{}')"
        window = (
            "(SELECT (each.value ->> 2)::bigint FROM jsonb_array_elements(a.scopes::jsonb) AS each(value) "
            "WHERE each.value ->> 0 = {})"
        )
    scope_of = {each: SCOPE_OF_PAUSE.format(f"{each}.") for each in "eqr"}
    scope, until_ms = scope_of["e"], f"CAST({get.format('e', 'until_ms')} AS BIGINT)"
    ends = f"CASE WHEN {until_ms} < {FOREVER_MS // 2} THEN {until_ms} END"
    # Only a failed job ends in the call that pauses its scope: a handler's pause is a call of its own.
    fails = "a.ended_at_ms = e.at_ms AND (a.outcome = 'retried' OR a.outcome = 'died')"
    cause = (
        "CASE WHEN e.job_id IS NULL THEN 'operator' "
        f"WHEN {fails} THEN 'failures' WHEN a.fence IS NOT NULL THEN 'handler' END"
    )
    later = f"(+r.epoch, r.seq) > (e.epoch, e.seq) AND {scope_of['r']} = {scope}"
    resumed = (
        f"(SELECT MIN(r.at_ms) FROM job_event r WHERE r.queue = e.queue AND {IS_PAUSE.format('r.')} "
        f"AND r.at_ms >= e.at_ms AND r.at_ms < {until_ms} AND {later} AND {get.format('r', 'until_ms')} IS NULL)"
    )
    of_claim = "{0}.queue = a.queue AND {0}.job_id = a.job_id AND {1} = a.fence"
    # A failure counts unless a pause has begun since the job's claim. A pause that an operator has ended does not
    # matter. A + keeps SQLite from searching by the primary key.
    earlier = "q.queue = p.queue AND q.at_ms >= a.claimed_at_ms AND q.at_ms <= p.at_ms"
    earlier += f" AND {IS_PAUSE.format('q.')} AND (+q.epoch, q.seq, q.ordinal) < (p.epoch, p.seq, p.ordinal)"
    earlier += f" AND {scope_of['q']} = p.scope AND {get.format('q', 'until_ms')} IS NOT NULL"
    between = "r.queue = q.queue AND r.at_ms >= q.at_ms AND r.at_ms <= a.ended_at_ms"
    between += f" AND {IS_PAUSE.format('r.')} AND (+r.epoch, r.seq) > (q.epoch, q.seq)"
    between += " AND (+r.epoch, r.seq) < (f.epoch, f.seq)"
    between += f" AND {scope_of['r']} = p.scope AND {get.format('r', 'until_ms')} IS NULL"
    family = "SUBSTR(p.scope, 1, INSTR(p.scope, '=') - 1)"
    counts = (
        f"INSTR(' ' || COALESCE({error.format('f', 'excepted')}, '') || ' ', ' ' || {family} || ' ') = 0 "
        # No handler has caused these deaths: see rq_core.model.table.reasons.
        f"AND COALESCE({get.format('f', 'reason')}, '') NOT LIKE 'unknown%'"
    )
    made = {
        "scope_pauses": (
            f"CREATE VIEW scope_pauses AS SELECT e.queue, {scope} AS scope, e.at_ms, {readable('e.at_ms')} AS at, "
            f"{ends} AS until_ms, {readable(ends)} AS until, {resumed} AS resumed_at_ms, {cause} AS cause, "
            f"e.worker AS who, {get.format('e', 'why')} AS reason, e.job_id, {get.format('e', 'fence')} AS fence, "
            f"CASE WHEN {fails} THEN {window.format(scope)} END AS window_ms, e.epoch, e.seq, e.ordinal "
            "FROM job_event e LEFT JOIN job_attempt a ON "
            f"{of_claim.format('e', get.format('e', 'fence'))} "
            f"WHERE {IS_PAUSE.format('e.')} AND {get.format('e', 'until_ms')} IS NOT NULL"
        ),
        "scope_pause_failures": (
            "CREATE VIEW scope_pause_failures AS SELECT p.queue, p.scope, p.at_ms AS paused_at_ms, p.at AS paused_at, "
            f"p.until, a.job_id, a.claim, a.task, a.worker, a.ended_at_ms AS failed_at_ms, "
            f"{readable('a.ended_at_ms')} AS failed_at, a.outcome, a.error_type, a.error_message, "
            "p.epoch, p.seq, p.ordinal "
            # CROSS JOIN: SQLite keeps this order. Else it would begin with all events of the queue.
            "FROM scope_pauses p CROSS JOIN job_attempt a CROSS JOIN job_event f WHERE p.cause = 'failures' "
            "AND a.queue = p.queue AND (a.outcome = 'retried' OR a.outcome = 'died') AND a.outcome <> 'succeeded' "
            "AND a.ended_at_ms > p.at_ms - p.window_ms AND a.ended_at_ms <= p.at_ms "
            f"AND INSTR(a.scopes, '\"' || p.scope || '\"') > 0 "
            "AND f.job_id = a.job_id AND f.queue || '' = a.queue AND f.type = a.outcome "
            f"AND f.at_ms = a.ended_at_ms AND {get.format('f', 'fence')} = a.fence "
            f"AND {counts} AND NOT EXISTS (SELECT 1 FROM job_event q WHERE {earlier} "
            f"AND NOT EXISTS (SELECT 1 FROM job_event r WHERE {between}))"
        ),
    }
    return {name: in_dialect(dialect, statement) for name, statement in made.items()}
