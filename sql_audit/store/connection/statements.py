"""Every SQL statement of the mirror, named. Column lists come from the schema; values are always
bound.

Statements for many rows are written for the driver (``?`` for SQLite, ``%s`` for psycopg), since
they carry thousands of rows; those of the cursor and its company are SQLAlchemy's.
"""

# ruff: noqa: S608 - statements are joined from the schema's own names, never from values

from __future__ import annotations

from typing import Final

from sqlalchemy import Table, Text, bindparam, func, select
from sqlalchemy.dialects import postgresql, sqlite

from sql_audit.store.schema.tables import (
    ATTEMPT_COLUMNS,
    ENDING_COLUMNS,
    EVENT_COLUMNS,
    JOB_COLUMNS,
    audit_meta,
    claim_minute,
    job,
    job_attempt,
    job_event,
    mirror_batch,
    mirror_cursor,
    mirror_epoch,
    quarantine,
)

AUDIT_ID: Final = select(audit_meta.c.audit_id)
"""The name of this database, under which Redis knows it."""

CHAIN_ID: Final = select(func.coalesce(audit_meta.c.chain_id, audit_meta.c.audit_id))
"""The name with which its chains begin: that of the database that it is a copy of, if it is one."""

CURSOR: Final = select(mirror_cursor).where(mirror_cursor.c.queue == bindparam("queue"))
"""A queue's cursor, as committed."""

LOCKED_CURSOR: Final = CURSOR.with_for_update(skip_locked=True)
"""A queue's cursor, locked: no row while another mirror has it. (SQLite has locked the database
already.)"""

_NEW_CURSOR = {
    "queue": bindparam("queue"),
    "head": bindparam("head"),
    **dict.fromkeys(
        ("batch", "entries", "events", "bytes", "quarantined", "gaps", "trim_jobs", "trim_bytes"), 0
    ),
}

CREATE_CURSOR: Final = {
    "sqlite": sqlite.insert(mirror_cursor).values(_NEW_CURSOR).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(mirror_cursor).values(_NEW_CURSOR).on_conflict_do_nothing(),
}
"""A queue's first cursor. Another mirror may have been quicker."""

ADVANCE_CURSOR: Final = (
    mirror_cursor.update()
    .where(mirror_cursor.c.queue == bindparam("the_queue"))
    .values({c.name: bindparam(c.name) for c in mirror_cursor.columns if c.name != "queue"})
)
"""Move a queue's cursor, which is locked."""

BIND_CURSOR: Final = (
    mirror_cursor.update()
    .where(mirror_cursor.c.queue == bindparam("the_queue"))
    .values(prefix=bindparam("prefix"), stamp=bindparam("stamp"))
)
"""Say where a queue comes from. Its cursor is locked."""

RELEASE_CURSOR: Final = (
    mirror_cursor.update()
    .where(mirror_cursor.c.queue == bindparam("the_queue"))
    .where(mirror_cursor.c.prefix == bindparam("the_prefix"))
    .where(mirror_cursor.c.stamp == bindparam("the_stamp"))
    .values(stamp=None)
)
"""Let the next Redis of its prefix take a queue, if no mirror has meanwhile."""

INSERT_BATCH: Final = mirror_batch.insert()
"""The next link of the chain."""

INSERT_EPOCHS: Final = mirror_epoch.insert()
"""Beginnings and breaks of the numbering."""

INSERT_QUARANTINE: Final = quarantine.insert()
"""Raw bytes of what could not become rows."""


def _names(columns: tuple[str, ...]) -> str:
    return ", ".join(columns)


def _assignments(columns: tuple[str, ...], keys: tuple[str, ...], source: str) -> str:
    return ", ".join(f"{name} = {source}.{name}" for name in columns if name not in keys)


def _keys(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.primary_key)


# The columns that the beginning of an attempt filled stay; those of its end get the last values.
_ATTEMPT_ENDS: Final = ", ".join(
    f"{name} = COALESCE(excluded.{name}, job_attempt.{name})"
    if name in ENDING_COLUMNS
    else f"{name} = COALESCE(job_attempt.{name}, excluded.{name})"
    for name in ATTEMPT_COLUMNS
    if name not in _keys(job_attempt)
)


_MINUTE_COLUMNS: Final = tuple(column.name for column in claim_minute.columns)

COUNT_CLAIMS: Final = (
    f"INSERT INTO claim_minute ({_names(_MINUTE_COLUMNS)}) SELECT outcome, "
    "ended_at_ms - ended_at_ms % 60000, queue, COALESCE(task, ''), COALESCE(worker, ''), "
    "COALESCE(error_type, ''), COUNT(*), COALESCE(SUM(waited_ms), 0), "
    "COALESCE(MAX(waited_ms), 0), COALESCE(SUM(ran_ms), 0), COALESCE(MAX(ran_ms), 0) "
    "FROM job_attempt WHERE outcome IS NOT NULL AND ended_at_ms IS NOT NULL"
)
"""Count claims that ended; which, and GROUP BY the first six, is to follow."""


def _added(longest: str) -> str:
    """How counts are added to those that are there; ``longest``: the function for the larger of two."""
    sums = (f"{n} = claim_minute.{n} + excluded.{n}" for n in ("claims", "waited_ms", "ran_ms"))
    maxima = (
        f"{n} = {longest}(claim_minute.{n}, excluded.{n})" for n in ("waited_max_ms", "ran_max_ms")
    )
    return (
        f"ON CONFLICT ({_names(_keys(claim_minute))}) DO UPDATE SET {', '.join((*sums, *maxima))}"
    )


def _insert(table: Table, columns: tuple[str, ...]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table.name} ({_names(columns)}) VALUES ({marks})"


def of_rows(statement: str, count: int) -> str:
    """Make one of SQLITE's INSERTs for ``count`` rows at once."""
    head, _, rest = statement.partition(" VALUES (")
    marks, _, tail = rest.partition(")")
    return f"{head} VALUES {', '.join([f'({marks})'] * count)}{tail}"


class SQLITE:
    """For sqlite3's executemany; INSERTs of many rows through :func:`of_rows`."""

    JOBS: Final = (
        f"SELECT {_names(JOB_COLUMNS)} FROM job "
        "WHERE queue = ? AND job_id IN (SELECT value FROM json_each(?))"
    )
    """The rows of the jobs of a batch: their ids as one JSON array, since variables are limited."""

    ATTEMPTS: Final = (
        f"SELECT {_names(ATTEMPT_COLUMNS)} FROM job_attempt "
        "WHERE queue = ? AND job_id IN (SELECT value FROM json_each(?))"
    )
    """The claims of some jobs."""

    INSERT_EVENTS: Final = _insert(job_event, EVENT_COLUMNS)
    """Append events. An event that is there already is an error."""

    UPSERT_JOBS: Final = (
        f"{_insert(job, JOB_COLUMNS)} ON CONFLICT ({_names(_keys(job))}) DO UPDATE SET "
        f"{_assignments(JOB_COLUMNS, _keys(job), 'excluded')}"
    )
    """Put jobs where their events left them."""

    UPSERT_ATTEMPTS: Final = (
        f"{_insert(job_attempt, ATTEMPT_COLUMNS)} "
        f"ON CONFLICT ({_names(_keys(job_attempt))}) DO UPDATE SET {_ATTEMPT_ENDS}"
    )
    """Begin and end claims."""

    COUNT_MINUTES: Final = f"{_insert(claim_minute, _MINUTE_COLUMNS)} {_added('MAX')}"
    """Add what a batch ended."""


class POSTGRESQL:
    """For psycopg's execute and COPY. ``*_staging`` are temporary tables of the transaction."""

    JOBS: Final = f"SELECT {_names(JOB_COLUMNS)} FROM job WHERE queue = %s AND job_id = ANY(%s)"
    """The rows of the jobs of a batch."""

    ATTEMPTS: Final = (
        f"SELECT {_names(ATTEMPT_COLUMNS)} FROM job_attempt WHERE queue = %s AND job_id = ANY(%s)"
    )
    """The claims of some jobs."""

    BOUND: Final = (
        "SET LOCAL idle_in_transaction_session_timeout = {idle_ms:d}; "
        "SET LOCAL client_min_messages = warning"
    )
    """The settings of a transaction that writes. The session gets no setting, since a pooler hands it on."""

    END_STALLED: Final = (
        "SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND usename = current_user "
        "AND application_name = 'rq-core audit' AND pid <> pg_backend_pid() "
        "AND state = 'active' AND wait_event = 'ClientRead' "
        "AND xact_start < now() - %s * interval '1 millisecond'"
    )
    """End mirrors that are in a COPY and send nothing."""

    TAKEN: Final = (
        "SELECT epoch, seq FROM job_event WHERE queue = %s AND (epoch, seq) >= (%s, %s) "
        "AND (epoch, seq) <= (%s, %s) LIMIT 1"
    )
    """A number in a range that has an event already: the key, which has the event's time in it, would
    let another with the same number in."""

    COUNT_MINUTES: Final = (
        f"INSERT INTO claim_minute ({_names(_MINUTE_COLUMNS)}) SELECT * FROM unnest("
        f"{', '.join('%s::text[]' if isinstance(c.type, Text) else '%s::bigint[]' for c in claim_minute.columns)}"
        f") {_added('GREATEST')}"
    )
    """Add what a batch ended: one array per column."""

    COPY_EVENTS: Final = f"COPY job_event ({_names(EVENT_COLUMNS)}) FROM STDIN"
    """Append events. An event that is there already is an error."""

    COPY_JOBS: Final = f"COPY job ({_names(JOB_COLUMNS)}) FROM STDIN"
    """Jobs that were never seen before."""

    COPY_JOBS_STAGING: Final = f"COPY job_staging ({_names(JOB_COLUMNS)}) FROM STDIN"
    """Jobs that have a row."""

    UPDATE_JOBS: Final = (
        f"UPDATE job SET {_assignments(JOB_COLUMNS, _keys(job), 's')} FROM job_staging s "
        "WHERE job.job_id = s.job_id AND job.queue = s.queue"
    )
    """Put known jobs where their events left them."""

    COPY_ATTEMPTS: Final = f"COPY job_attempt ({_names(ATTEMPT_COLUMNS)}) FROM STDIN"
    """Claims that begin in this batch."""

    COPY_ATTEMPTS_STAGING: Final = (
        f"COPY job_attempt_staging ({_names(ATTEMPT_COLUMNS)}) FROM STDIN"
    )
    """Claims that may have a row."""

    STAGING: Final = {
        copy: f"CREATE TEMPORARY TABLE IF NOT EXISTS {name}_staging ON COMMIT DROP AS SELECT {_names(columns)} "
        f"FROM {name} WITH NO DATA"
        for copy, name, columns in (
            (COPY_JOBS_STAGING, "job", JOB_COLUMNS),
            (COPY_ATTEMPTS_STAGING, "job_attempt", ATTEMPT_COLUMNS),
        )
    }
    """The table that each of the two needs, with the mirror's columns alone: an operator may have added others. It ends
    with its transaction: one that stayed would hold back the cluster's oldest transaction for as long as its
    connection."""

    END_ATTEMPTS: Final = (
        f"INSERT INTO job_attempt ({_names(ATTEMPT_COLUMNS)}) "
        f"SELECT {_names(ATTEMPT_COLUMNS)} FROM job_attempt_staging "
        f"ON CONFLICT ({_names(_keys(job_attempt))}) DO UPDATE SET {_ATTEMPT_ENDS}"
    )
    """End claims that began earlier, or whose beginning was never seen."""
