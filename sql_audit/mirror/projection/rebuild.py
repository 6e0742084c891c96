"""Computes the rows of jobs and claims again from their events, after Redis forgot some of these events.

Forgotten events stay in the log, but no longer count. The mirror writes the new rows to SQL, with the cursor locked.
``audit why`` and ``audit restore`` only read them.
"""

# ruff: noqa: S608 - statements are joined from the schema's own names; values are bound

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Connection, bindparam, text

from rq_core.model.events import OutboxId
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS
from sql_audit.mirror.intake import Intake
from sql_audit.mirror.projection.fold import Folder
from sql_audit.store.connection.copy import Rows
from sql_audit.store.connection.database import Database
from sql_audit.store.job_rows import Attempt, EventRow, JobRow
from sql_audit.store.orphans import LossEnd, Range, ends, in_any
from sql_audit.store.schema.tables import EVENT_COLUMNS, LOST
from sql_audit.store.storable_text import read_details

JOBS: Final = 500
"""Number of jobs whose rows are computed again in one step."""
_COLUMNS: Final = ", ".join(EVENT_COLUMNS)
_EVENTS_OF_JOBS: Final = text(
    # Without the cast, SQLite would read all events of the queue in their order, instead of finding the jobs' events by
    # their index and sorting them.
    f"SELECT {_COLUMNS} FROM job_event WHERE CAST(queue AS TEXT) = :queue AND job_id IN :ids "
    "ORDER BY epoch, seq, ordinal"
).bindparams(bindparam("ids", expanding=True))
_DELETE_JOBS: Final = tuple(
    text(f"DELETE FROM {table} WHERE queue = :queue AND job_id IN :ids").bindparams(
        bindparam("ids", expanding=True)
    )
    for table in ("job", "job_attempt")
)


def refold(
    connection: Connection,
    database: Database,
    queue: str,
    ids: Sequence[str],
    orphaned: Sequence[Range],
) -> None:
    """Replace the rows of some jobs and of their claims by rows made from the events that Redis has not forgotten."""
    met = ends(connection, queue, orphaned)
    for begin in range(0, len(ids), JOBS):
        chunk = list(ids[begin : begin + JOBS])
        of_jobs = {"queue": queue, "ids": chunk}
        rows = events_of(connection, queue, chunk)
        jobs, attempts = folded(queue, chunk, rows, orphaned, met)
        for statement in _DELETE_JOBS:
            connection.execute(statement, of_jobs)
        database.put_jobs(connection, Rows(jobs), Rows())
        database.put_attempts(connection, Rows(attempts), Rows())


def events_of(connection: Connection, queue: str, ids: Sequence[str]) -> list[EventRow]:
    """Return all events of some jobs, oldest first. Events that Redis has forgotten (orphaned events) are included."""
    if not ids:
        return []  # PostgreSQL cannot compare a text with the empty list that SQLAlchemy would send.
    of_jobs = {"queue": queue, "ids": list(ids)}
    return [tuple(row) for row in connection.execute(_EVENTS_OF_JOBS, of_jobs)]


def folded(
    queue: str,
    ids: Iterable[str],
    rows: Iterable[EventRow],
    orphaned: Sequence[Range],
    met: Sequence[LossEnd] = (),
) -> tuple[list[JobRow], list[Attempt]]:
    """Compute the rows of ``job`` and ``job_attempt`` from the jobs' events, without the events that Redis has
    forgotten.

    ``rows`` are all events of the jobs, oldest first. ``orphaned`` are the ranges of forgotten events. ``met`` are the
    losses of Redis and the complete baselines that ended jobs. If Redis forgot all events of a job, the job gets the
    state ``lost``, and its other fields come from the forgotten events.
    """
    surviving, whole = Folder(queue, ()), Folder(queue, ())
    to_come = list(met)

    def pass_ends(upto: OutboxId | None) -> None:
        while to_come and (upto is None or to_come[0].at < upto):
            end = to_come.pop(0)
            surviving.end_all(end.state, end.epoch, end.at_ms)

    for row in rows:
        intake = intake_of(row)
        if intake is None:
            continue
        whole.add(intake)
        if not in_any(intake.id, orphaned):
            pass_ends(intake.id)
            surviving.add(intake)
    pass_ends(None)
    jobs: list[JobRow] = []
    for job_id in ids:
        job = surviving.touched.get(job_id)
        if job is None:
            job = whole.touched.get(job_id)
            if job is None:
                continue  # The job has only events that make no row, such as refused settlements.
            job.reason, job.state = job.state, LOST
            job.fence = job.worker = job.due_ms = None
        jobs.append(job)
    attempts = [*surviving.begun.values(), *surviving.resumed.values()]
    return jobs, attempts


_FIELDS: Final = {
    str(event): (event, tuple(field.name for field in fields))
    for event, fields in JOB_EVENT_FIELDS.items()
}


def intake_of(row: EventRow) -> Intake | None:
    """Make the checked form (intake) of an event again from its row in SQL. Return None for an event that is not about
    a job.

    Raise RowDamaged if the JSON in the row cannot be read.
    """
    queue, epoch, seq, ordinal, event_type, at_ms, job_id, claim, worker, task, detail = row
    if event_type not in _FIELDS or job_id is None:
        return None
    event, names = _FIELDS[event_type]
    facts = read_details(detail, queue, OutboxId(epoch, seq))
    why = facts.pop("why", None)
    of_columns = {"id": job_id, "task": task, "claim": claim}
    columns: dict[str, Sequence[Any]] = {
        name: [of_columns[name] if name in of_columns else facts.get(name)] for name in names
    }
    return Intake(
        OutboxId(epoch, seq), event, at_ms, worker, why, 0, 1, columns=columns, ordinals=(ordinal,)
    )
