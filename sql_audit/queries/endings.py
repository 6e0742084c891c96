"""How jobs ended, as those ask who wait for them: :mod:`rq_core.app.awaiting`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, text
from sqlalchemy.exc import SQLAlchemyError

from rq_core.model.effects import EFFECTS
from rq_core.model.job import JobError
from rq_core.model.machine import Event, State
from rq_core.model.outcome import (
    Cancelled,
    Expired,
    Failed,
    Gone,
    Outcome,
    Replaced,
    Succeeded,
)
from sql_audit.errors import AuditUnavailable
from sql_audit.store import migrate
from sql_audit.store.database import Database
from sql_audit.store.driver_errors import describe

_CURSOR: Final = text("SELECT epoch, seq FROM mirror_cursor WHERE queue = :queue")
_JOBS: Final = text(
    "SELECT job_id, state, reason, error_type, error_message FROM job"
    " WHERE queue = :queue AND job_id IN :ids"
).bindparams(bindparam("ids", expanding=True))
_LAST: Final = text(
    "SELECT type, detail FROM job_event WHERE job_id = :job_id AND queue = :queue AND type IN :types"
    " ORDER BY epoch DESC, seq DESC LIMIT 1"
).bindparams(bindparam("types", expanding=True))
_DEATHS: Final = (Event.DIED, Event.LEASE_EXPIRED, Event.EXPIRED)


class LogEndings:
    """Reads one audit database. One thread at a time may use it."""

    def __init__(self, url: str) -> None:
        """Raises AuditUrlInvalid, or AuditUnavailable if the driver is not installed."""
        self._database = Database(url)
        self._checked = False

    def read(self, queue: str, jobs: Mapping[str, tuple[int, int]]) -> Mapping[str, Outcome[Any]]:
        """See EndingsReader. Raises AuditError if the database does not answer, or has another schema."""
        try:
            if not self._checked:
                migrate.check_current(self._database)
                self._checked = True
            # All at one moment: a job of which more is mirrored between two statements would seem to be gone.
            with self._database.snapshot() as connection:
                return _read(connection, queue, jobs)
        except SQLAlchemyError as error:
            raise AuditUnavailable(url=self._database.url, why=describe(error)) from error

    def close(self) -> None:
        """Close all connections."""
        self._database.close()


def _read(
    connection: Connection, queue: str, jobs: Mapping[str, tuple[int, int]]
) -> dict[str, Outcome[Any]]:
    cursor = connection.execute(_CURSOR, {"queue": queue}).one_or_none()
    if cursor is None or cursor.epoch is None:
        return {}
    ids = [job_id for job_id, at in jobs.items() if at <= (cursor.epoch, cursor.seq)]
    if not ids:
        return {}
    rows = {row.job_id: row for row in connection.execute(_JOBS, {"queue": queue, "ids": ids})}
    return {
        job_id: _outcome(connection, queue, rows[job_id]) if job_id in rows else Gone(job_id)
        for job_id in ids
    }


def _outcome(connection: Connection, queue: str, row: Row[Any]) -> Outcome[Any]:
    ended_by = row.reason if row.state == Event.REMOVED else row.state
    match ended_by:
        case Event.SUCCEEDED:
            return Succeeded(row.job_id)
        case Event.CANCELLED:
            return Cancelled(row.job_id)
        case Event.EXPIRED:
            return Expired(row.job_id)
        case Event.PRUNED | State.DEAD:
            event, detail = _last(connection, queue, row.job_id, _DEATHS)
            reason = detail.get("reason") or EFFECTS[event].dies_of or row.reason or ""
            error = row.error_type and JobError(row.error_type, row.error_message or "")
            return Failed(row.job_id, reason=str(reason), error=error or None)
        case Event.REPLACED:
            _, detail = _last(connection, queue, row.job_id, (Event.REPLACED,))
            return Replaced(row.job_id, by=detail.get("by_job", ""))
        case _:
            # Redis lost it, or never accepted it.
            return Gone(row.job_id)


def _last(
    connection: Connection, queue: str, job_id: str, types: Sequence[Event]
) -> tuple[Event, dict[str, Any]]:
    """The last event of one of these types of a job, and what it carries; the first type if there is none."""
    asked = {"job_id": job_id, "queue": queue, "types": [*map(str, types)]}
    row = connection.execute(_LAST, asked).one_or_none()
    return (types[0], {}) if row is None else (Event(row.type), json.loads(row.detail or "{}"))


def open_endings(url: str) -> LogEndings:
    """Return a reader of the database at ``url``, as rq_core asks for it. Nothing is asked yet.

    Raises AuditUrlInvalid, or AuditUnavailable if the driver is not installed.
    """
    return LogEndings(url)
