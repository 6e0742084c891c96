"""Finds the jobs that died, and the JSON with which each was enqueued, so that copies of them can be enqueued."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Row, bindparam, text
from sqlalchemy.exc import SQLAlchemyError

from rq_core.model.filters.copy_reader import After, DiedJobs
from rq_core.model.filters.job_filter import Filter
from rq_core.model.table.machine import Event, State
from sql_audit.queries.ended_claims import Place, Wanted, ended_claims
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.driver_errors import failure
from sql_audit.store.storable_text import read_json

_DEATHS: Final = ("died", "lease_expired")
"""The outcomes of claims after which a job may be dead."""
_DEAD: Final = (str(State.DEAD), str(Event.PRUNED))
"""The states of jobs that are dead, or were dead when an operator or the end of their retention removed them."""
_CURSOR: Final = text("SELECT epoch, seq FROM mirror_cursor WHERE queue = :queue")
_STATES: Final = text(
    "SELECT job_id, state, claims FROM job WHERE queue = :queue AND job_id IN :ids"
).bindparams(bindparam("ids", expanding=True))
_ENQUEUED: Final = text(
    # Without the cast, SQLite would read all events of the queue (see mirror/projection/rebuild.py).
    "SELECT job_id, detail FROM job_event WHERE CAST(queue AS TEXT) = :queue AND job_id IN :ids"
    " AND type = 'enqueued' ORDER BY epoch, seq"
).bindparams(bindparam("ids", expanding=True))
_QUEUES: Final = text("SELECT DISTINCT queue FROM job WHERE job_id = :job_id ORDER BY queue")

T = TypeVar("T")


class LogCopies:
    """Finds dead jobs in an audit database, so that copies of them can be enqueued (see CopyReader). Threads may share
    it.
    """

    def __init__(self, url: str) -> None:
        """Prepare the reader; nothing is read yet. Raise AuditUrlInvalid, or AuditUnavailable if the driver is not
        installed.
        """
        self._database = Database(url)
        self._checked = False

    def died(self, which: Filter, after: After | None, limit: int) -> DiedJobs:
        """Return one page of the dead jobs that match the filter ``which``: up to ``limit`` jobs, after the position
        ``after``. See CopyReader.died.
        """
        first, last = which.instants_ms
        wanted = Wanted(
            _DEATHS, which.queue, which.task or "", which.error or "", which.worker or "",
            which.scope or "", first or 0, last,
        )  # fmt: skip

        def read(connection: Connection) -> DiedJobs:
            place = None if after is None else Place(*after)
            page = ended_claims(self._database.readers, wanted, after=place, limit=limit)
            ids = list(dict.fromkeys(row["job_id"] for row in page.rows))
            jobs = _jobs(connection, which.queue, ids)
            dead = tuple(each for each in ids if each in jobs and jobs[each].state in _DEAD)
            last = frozenset(
                row["job_id"] for row in page.rows
                if row["job_id"] in jobs and row["claim"] == jobs[row["job_id"]].claims
            )  # fmt: skip
            end = page.next
            at = None if end is None else (end.ended_at_ms, end.job_id, end.fence, end.queue)
            return DiedJobs(dead, last.intersection(dead), at)

        return self._ask(read)

    def known(self, queue: str, ids: Sequence[str]) -> set[str]:
        """Return the ids among ``ids`` that the log has in a queue."""
        return self._ask(lambda connection: set(_jobs(connection, queue, ids)))

    def specs(self, queue: str, ids: Sequence[str]) -> Mapping[str, str]:
        """Return the JSON with which each job was enqueued, by job id. Jobs whose JSON the log does not have are left
        out.
        """
        return self._ask(lambda connection: _enqueued(connection, queue, ids, "spec"))

    def reasons(self, queue: str, ids: Sequence[str]) -> Mapping[str, str]:
        """Return, by job id, the reason (``why``) that the producer gave when it enqueued the job. Jobs without a
        reason are left out.
        """
        return self._ask(lambda connection: _enqueued(connection, queue, ids, "why"))

    def queues_of(self, job_id: str) -> list[str]:
        """Return the names of the queues in which the log has a job with this id."""
        return self._ask(
            lambda connection: [
                row.queue for row in connection.execute(_QUEUES, {"job_id": job_id})
            ]
        )

    def has_come_to(self, queue: str, entry: tuple[int, int]) -> bool:
        """Return whether the mirror has copied the queue's outbox to SQL up to ``entry`` (epoch, seq)."""

        def read(connection: Connection) -> bool:
            row = connection.execute(_CURSOR, {"queue": queue}).one_or_none()
            return row is not None and row.epoch is not None and (row.epoch, row.seq) >= entry

        return self._ask(read)

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def _ask(self, question: Callable[[Connection], T]) -> T:
        try:
            if not self._checked:
                migrate.check_current(self._database)
                self._checked = True
            with self._database.snapshot() as connection:
                return question(connection)
        except SQLAlchemyError as error:
            raise failure(self._database.url, error) from error


def _jobs(connection: Connection, queue: str, ids: Sequence[str]) -> dict[str, Row[Any]]:
    """Return the state and the number of claims of each job in the log, by job id."""
    if not ids:
        return {}
    rows = connection.execute(_STATES, {"queue": queue, "ids": list(ids)})
    return {row.job_id: row for row in rows}


def _enqueued(connection: Connection, queue: str, ids: Sequence[str], field: str) -> dict[str, str]:
    """Return one field of each job's last ``enqueued`` event, by job id. Jobs without the field are left out."""
    rows = connection.execute(_ENQUEUED, {"queue": queue, "ids": list(ids)}) if ids else ()
    said = {row.job_id: read_json(row.detail, dict).get(field) for row in rows}
    return {job_id: value for job_id, value in said.items() if isinstance(value, str)}


def open_log_copies(url: str) -> LogCopies:
    """Return a LogCopies for the audit database at ``url``. rq_core finds this function by an entry point. Nothing is
    read yet.

    Raise AuditUrlInvalid, or AuditUnavailable if the driver is not installed.
    """
    return LogCopies(url)
