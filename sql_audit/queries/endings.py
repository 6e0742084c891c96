"""Reads the outcomes of jobs, for callers that wait for jobs (:mod:`rq_core.app.handles.awaiting`)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, bindparam, text
from sqlalchemy.exc import SQLAlchemyError

from rq_core.model.job import JobError
from rq_core.model.outcome import (
    EXPIRED,
    LOST,
    Cancelled,
    Expired,
    Failed,
    Gone,
    Kept,
    Outcome,
    Replaced,
    Succeeded,
)
from rq_core.model.table.effects import EFFECTS, JOB_ENDS
from rq_core.model.table.machine import Event, State
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.driver_errors import failure
from sql_audit.store.storable_text import read_json

_CURSOR: Final = text("SELECT epoch, seq FROM mirror_cursor WHERE queue = :queue")
_JOBS: Final = text(
    "SELECT job_id, task, state, reason, error_type, error_message, last_epoch, last_seq, finished_at_ms, keep_ms"
    " FROM job WHERE queue = :queue AND job_id IN :ids"
).bindparams(bindparam("ids", expanding=True))
_LAST: Final = text(
    "SELECT type, task, detail FROM job_event WHERE job_id = :job_id AND queue = :queue AND type IN :types"
    " AND (epoch < :epoch OR epoch = :epoch AND seq <= :seq) ORDER BY epoch DESC, seq DESC LIMIT 1"
).bindparams(bindparam("types", expanding=True))
IDS_CHUNK: Final = 1_000
"""Maximum number of jobs that one statement reads."""
_DEATHS: Final = (Event.DIED, Event.LEASE_EXPIRED, Event.EXPIRED)


class LogEndings:
    """Reads the outcomes of jobs from one audit database. Only one thread may use it at a time."""

    def __init__(self, url: str) -> None:
        """Prepare the reader; nothing is read yet. Raise AuditUrlInvalid, or AuditUnavailable if the driver is not
        installed.
        """
        self._database = Database(url)
        self._checked = False

    def read(self, queue: str, jobs: Mapping[str, tuple[int, int]]) -> Mapping[str, Outcome[Any]]:
        """Return the outcomes of the jobs in ``jobs`` that have ended, by job id. See EndingsReader.

        Raise AuditError if the database does not answer or has another schema.
        """
        try:
            if not self._checked:
                migrate.check_current(self._database)
                self._checked = True
            # One snapshot for all statements: if events of a job were mirrored between two statements, the job would
            # seem to be gone.
            with self._database.snapshot() as connection:
                return _read(connection, queue, jobs)
        except SQLAlchemyError as error:
            raise failure(self._database.url, error) from error

    def close(self) -> None:
        """Close all connections."""
        self._database.close()


def _read(
    connection: Connection, queue: str, jobs: Mapping[str, tuple[int, int]]
) -> dict[str, Outcome[Any]]:
    cursor = connection.execute(_CURSOR, {"queue": queue}).one_or_none()
    has = (0, 0) if cursor is None or cursor.epoch is None else (cursor.epoch, cursor.seq)
    ids = [job_id for job_id, at in jobs.items() if at <= has]
    found: dict[str, Outcome[Any]] = {}
    for n in range(0, len(ids), IDS_CHUNK):
        chunk = ids[n : n + IDS_CHUNK]
        asked = {"queue": queue, "ids": chunk}
        rows = {row.job_id: row for row in connection.execute(_JOBS, asked)}
        for job_id in chunk:
            row = rows.get(job_id)
            found[job_id] = (
                Gone(job_id) if row is None else _outcome(connection, queue, row, jobs[job_id])
            )
    return found


def _outcome(
    connection: Connection, queue: str, row: Row[Any], upto: tuple[int, int]
) -> Outcome[Any]:
    job_id, last = row.job_id, (row.last_epoch, row.last_seq)
    if upto == (0, 0) or last <= upto:
        upto = last
        ended_by = row.reason if row.state == Event.REMOVED else row.state
        error = row.error_type and JobError(row.error_type, row.error_message or "")
    else:
        # The row belongs to a later job with this id.
        last_end = _last(connection, queue, job_id, tuple(JOB_ENDS), upto)
        is_removed = last_end.event is Event.REMOVED
        ended_by = last_end.detail.get("reason") if is_removed else last_end.event
        error = None
    match ended_by:
        case Event.SUCCEEDED:
            return _succeeded(connection, queue, row, upto)
        case Event.CANCELLED:
            return Cancelled(job_id)
        case Event.EXPIRED:
            return Expired(job_id)
        case Event.PRUNED | State.DEAD:
            event, detail, _ = _last(connection, queue, job_id, _DEATHS, upto)
            why = EFFECTS[event].dies_of if event else row.reason
            return Failed(
                job_id, reason=str(detail.get("reason") or why or ""), error=error or None
            )
        case Event.REPLACED:
            by = _last(connection, queue, job_id, (Event.REPLACED,), upto).detail.get("by_job", "")
            return Replaced(job_id, by=by)
        case _:
            # Redis lost the job, or never accepted it.
            return Gone(job_id)


def _succeeded(
    connection: Connection, queue: str, row: Row[Any], upto: tuple[int, int]
) -> Succeeded[Any]:
    """Return the outcome of a job that succeeded, with its result if the log has it."""
    job_id = row.job_id
    is_last = (row.last_epoch, row.last_seq) == upto
    if is_last and row.keep_ms is None:
        return Succeeded(job_id)
    _, detail, task = _last(connection, queue, job_id, (Event.SUCCEEDED,), upto)
    value = detail.get("value")
    if value is not None:
        # A later job with this id may have another task, whose annotation does not describe this value.
        kept = Kept(value, row.task if is_last else task)
        return Succeeded(job_id, kept=kept, missing=None)
    if not is_last and "value_digest" not in detail:
        return Succeeded(job_id)
    # If a later job has used this id, the time at which this job ended is not known.
    over = is_last and row.finished_at_ms + row.keep_ms <= time.time() * 1000
    return Succeeded(job_id, missing=EXPIRED if over else LOST)


class _Told(NamedTuple):
    """The last event of a job that matched a query. All fields are empty if no event matched."""

    event: Event | None = None
    detail: Mapping[str, Any] = MappingProxyType({})
    """The fields in the event's column ``detail``, by name."""
    task: str | None = None
    """The job's task at that event."""


def _last(
    connection: Connection,
    queue: str,
    job_id: str,
    types: Sequence[Event],
    upto: tuple[int, int],
) -> _Told:
    """Return the last event of a job whose type is one of ``types``, up to the entry ``upto``."""
    asked = {
        "job_id": job_id,
        "queue": queue,
        "types": [*map(str, types)],
        "epoch": upto[0],
        "seq": upto[1],
    }
    row = connection.execute(_LAST, asked).one_or_none()
    if row is None:
        return _Told()
    return _Told(Event(row.type), read_json(row.detail, dict), row.task)


def open_log_endings(url: str) -> LogEndings:
    """Return a LogEndings for the audit database at ``url``. rq_core finds this function by an entry point. Nothing is
    read yet.

    Raise AuditUrlInvalid, or AuditUnavailable if the driver is not installed.
    """
    return LogEndings(url)
