"""The SQL statements of the mirror. Column lists come from the schema; values are always bound.

Statements that run for thousands of rows are texts for the driver, with ``?`` for SQLite and ``%s`` for psycopg. The
other statements are SQLAlchemy's.
"""

# ruff: noqa: S608 - statements are joined from the schema's own names, never from values

from __future__ import annotations

from typing import Final

from sqlalchemy import Table, Text, bindparam, column, func, select, table
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

VERSION_TABLE: Final = "audit_schema_version"
"""The name of the table with the version of the schema. It differs from alembic's default name, so that an application
may have its own tables in the same database."""

SCHEMA_VERSION: Final = select(column("version_num", Text())).select_from(table(VERSION_TABLE))
"""A query for the version of the schema."""

AUDIT_ID: Final = select(audit_meta.c.audit_id)
"""A query for the random id of this audit database. Redis stores it for each queue that the database mirrors."""

CHAIN_ID: Final = select(func.coalesce(audit_meta.c.chain_id, audit_meta.c.audit_id))
"""A query for the id from which this database's chains of hashes begin: the audit id, or, in a forked copy, the id of
the original."""

CURSOR: Final = select(mirror_cursor).where(mirror_cursor.c.queue == bindparam("queue"))
"""A query for the mirror's position in a queue, without a lock."""

LOCKED_CURSOR: Final = CURSOR.add_columns(
    SCHEMA_VERSION.scalar_subquery().label("schema_version")
).with_for_update(skip_locked=True)
"""A query that locks and returns the mirror's position in a queue, and the version of the schema. It returns no row if
another mirror has locked the position. (On SQLite, the writer has locked the whole database already.)"""

LOCK_CURSORS: Final = "LOCK TABLE mirror_cursor IN EXCLUSIVE MODE"
"""Waits until no mirror is writing a batch, and keeps mirrors from writing until the transaction ends. For
PostgreSQL."""

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
"""Inserts the row with the mirror's position in a queue, unless it exists."""

ADVANCE_CURSOR: Final = (
    mirror_cursor.update()
    .where(mirror_cursor.c.queue == bindparam("the_queue"))
    .values({c.name: bindparam(c.name) for c in mirror_cursor.columns if c.name != "queue"})
)
"""Changes the mirror's position in a queue. The position must be locked."""

BIND_CURSOR: Final = (
    mirror_cursor.update()
    .where(mirror_cursor.c.queue == bindparam("the_queue"))
    .values(prefix=bindparam("prefix"), stamp=bindparam("stamp"))
)
"""Stores the Redis from which a queue comes: its key prefix and the queue's stamp, a random mark. The queue's cursor
must be locked."""

RELEASE_CURSOR: Final = (
    mirror_cursor.update()
    .where(mirror_cursor.c.queue == bindparam("the_queue"))
    .where(mirror_cursor.c.prefix == bindparam("the_prefix"))
    .where(mirror_cursor.c.stamp == bindparam("the_stamp"))
    .values(stamp=None)
)
"""Deletes a queue's stamp, its random mark, if it is still ``the_stamp``. The queue may then be mirrored from another
Redis with the same key prefix."""

INSERT_BATCH: Final = mirror_batch.insert()
"""Inserts the next batch of the chain of hashes."""

INSERT_EPOCHS: Final = mirror_epoch.insert()
"""Inserts the beginnings of epochs, and the breaks in the numbering: missing, changed or lost entries."""

INSERT_QUARANTINE: Final = quarantine.insert()
"""Inserts the raw bytes of outbox entries that could not be stored unchanged."""


def _names(columns: tuple[str, ...]) -> str:
    return ", ".join(columns)


def _assignments(columns: tuple[str, ...], keys: tuple[str, ...], source: str) -> str:
    return ", ".join(f"{name} = {source}.{name}" for name in columns if name not in keys)


def _keys(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.primary_key)


# Columns that the beginning of a claim fills keep their first values; columns that its end fills get the last values.
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
"""The beginning of a statement that counts ended claims. The caller adds conditions and ``GROUP BY 1, 2, 3, 4, 5,
6``."""


def _added(longest: str) -> str:
    """Return an ON CONFLICT clause that adds new counts to those of the existing row of ``claim_minute``.

    ``longest`` is the SQL function for the larger of two numbers.
    """
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
    """Change an INSERT of :class:`SQLITE` so that it inserts ``count`` rows."""
    head, _, rest = statement.partition(" VALUES (")
    marks, _, tail = rest.partition(")")
    return f"{head} VALUES {', '.join([f'({marks})'] * count)}{tail}"


class SQLITE:
    """Statements for SQLite's driver. :func:`of_rows` changes an INSERT so that it inserts many rows."""

    JOBS: Final = (
        f"SELECT {_names(JOB_COLUMNS)} FROM job "
        "WHERE queue = ? AND job_id IN (SELECT value FROM json_each(?))"
    )
    """Selects the rows of some jobs. The ids are one JSON array, since SQLite limits the number of variables."""

    ATTEMPTS: Final = (
        f"SELECT {_names(ATTEMPT_COLUMNS)} FROM job_attempt "
        "WHERE queue = ? AND job_id IN (SELECT value FROM json_each(?))"
    )
    """Selects the rows of the claims of some jobs."""

    INSERT_EVENTS: Final = _insert(job_event, EVENT_COLUMNS)
    """Inserts events. It fails if SQL has an event under the same number."""

    UPSERT_JOBS: Final = (
        f"{_insert(job, JOB_COLUMNS)} ON CONFLICT ({_names(_keys(job))}) DO UPDATE SET "
        f"{_assignments(JOB_COLUMNS, _keys(job), 'excluded')}"
    )
    """Inserts or replaces the rows of jobs."""

    UPSERT_ATTEMPTS: Final = (
        f"{_insert(job_attempt, ATTEMPT_COLUMNS)} "
        f"ON CONFLICT ({_names(_keys(job_attempt))}) DO UPDATE SET {_ATTEMPT_ENDS}"
    )
    """Inserts claims. If a claim has a row, sets the columns of its end, and fills its other columns that are null."""

    COUNT_MINUTES: Final = f"{_insert(claim_minute, _MINUTE_COLUMNS)} {_added('MAX')}"
    """Adds the counts of a batch's ended claims."""


class POSTGRESQL:
    """Statements for PostgreSQL's driver. ``*_staging`` are temporary tables of the transaction."""

    JOBS: Final = f"SELECT {_names(JOB_COLUMNS)} FROM job WHERE queue = %s AND job_id = ANY(%s)"
    """Selects the rows of some jobs."""

    ATTEMPTS: Final = (
        f"SELECT {_names(ATTEMPT_COLUMNS)} FROM job_attempt WHERE queue = %s AND job_id = ANY(%s)"
    )
    """Selects the rows of the claims of some jobs."""

    BOUND: Final = (
        "SET LOCAL idle_in_transaction_session_timeout = {idle_ms:d}; "
        "SET LOCAL client_min_messages = warning"
    )
    """Makes settings for one transaction that writes. No setting outlives the transaction, because a pooler gives the
    connection to other clients."""

    END_STALLED: Final = (
        "SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND usename = current_user "
        "AND application_name = 'rq-core audit' AND pid <> pg_backend_pid() "
        "AND state = 'active' AND wait_event = 'ClientRead' "
        "AND xact_start < now() - %s * interval '1 millisecond'"
    )
    """Ends the connections of mirrors that hang within a COPY, and returns how many it ended."""

    TAKEN: Final = (
        "SELECT epoch, seq FROM job_event WHERE queue = %s AND (epoch, seq) >= (%s, %s) "
        "AND (epoch, seq) <= (%s, %s) LIMIT 1"
    )
    """A query for an event that SQL already has within a range of numbers. The primary key does not prevent a second
    event with the same number, since the key also contains the event's time."""

    COUNT_MINUTES: Final = (
        f"INSERT INTO claim_minute ({_names(_MINUTE_COLUMNS)}) SELECT * FROM unnest("
        f"{', '.join('%s::text[]' if isinstance(c.type, Text) else '%s::bigint[]' for c in claim_minute.columns)}"
        f") {_added('GREATEST')}"
    )
    """Adds the counts of a batch's ended claims, which are passed as one array per column."""

    COPY_EVENTS: Final = f"COPY job_event ({_names(EVENT_COLUMNS)}) FROM STDIN"
    """Inserts events. It fails if SQL has the same event."""

    COPY_JOBS: Final = f"COPY job ({_names(JOB_COLUMNS)}) FROM STDIN"
    """Inserts jobs that have no row yet."""

    COPY_JOBS_STAGING: Final = f"COPY job_staging ({_names(JOB_COLUMNS)}) FROM STDIN"
    """Writes rows of jobs that already have a row in ``job`` into the staging table. UPDATE_JOBS then reads it."""

    UPDATE_JOBS: Final = (
        f"UPDATE job SET {_assignments(JOB_COLUMNS, _keys(job), 's')} FROM job_staging s "
        "WHERE job.job_id = s.job_id AND job.queue = s.queue"
    )
    """Replaces the rows of jobs by those in the staging table."""

    COPY_ATTEMPTS: Final = f"COPY job_attempt ({_names(ATTEMPT_COLUMNS)}) FROM STDIN"
    """Inserts claims that begin in the batch."""

    COPY_ATTEMPTS_STAGING: Final = (
        f"COPY job_attempt_staging ({_names(ATTEMPT_COLUMNS)}) FROM STDIN"
    )
    """Writes rows of claims that may already have a row in ``job_attempt`` into the staging table. END_ATTEMPTS then
    reads it."""

    STAGING: Final = {
        copy: f"CREATE TEMPORARY TABLE IF NOT EXISTS {name}_staging ON COMMIT DROP AS SELECT {_names(columns)} "
        f"FROM {name} WITH NO DATA"
        for copy, name, columns in (
            (COPY_JOBS_STAGING, "job", JOB_COLUMNS),
            (COPY_ATTEMPTS_STAGING, "job_attempt", ATTEMPT_COLUMNS),
        )
    }
    """By statement: the SQL that creates the temporary table into which it writes.

    The table has only the mirror's columns, since an operator may have added others. It is dropped at the end of the
    transaction: otherwise it would hold back the cluster's oldest transaction id until the connection is closed."""

    END_ATTEMPTS: Final = (
        f"INSERT INTO job_attempt ({_names(ATTEMPT_COLUMNS)}) "
        f"SELECT {_names(ATTEMPT_COLUMNS)} FROM job_attempt_staging "
        f"ON CONFLICT ({_names(_keys(job_attempt))}) DO UPDATE SET {_ATTEMPT_ENDS}"
    )
    """Inserts claims. If a claim has a row, from an earlier batch, sets the columns of its end, and fills its other
    columns that are null."""
