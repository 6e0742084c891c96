"""Checks every column of the rows of ``job`` and ``job_attempt`` against the events (invariant I8).

A job's row names the job's last event. When the events have been read up to there, the rows of the job are compared
with the rows that :mod:`sql_audit.proof.derived_rows` derives. Then the job is dropped from memory. Only jobs with
later events stay in memory, packed into bytes.

At the end, some jobs are derived again from all their events, in one snapshot of the database: jobs whose rows differ,
jobs that the mirror changed meanwhile, and jobs with events that Redis forgot. Then rows of jobs and claims without an
event are searched for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from sql_audit.mirror.projection.rebuild import events_of
from sql_audit.proof.derived_rows import Derivation, Derived
from sql_audit.proof.log import fetch
from sql_audit.store import orphans
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.statements import POSTGRESQL, SQLITE
from sql_audit.store.job_rows import EventRow
from sql_audit.store.schema.tables import ATTEMPT_COLUMNS, JOB_COLUMNS

LOOKED_AT_ONCE: Final = 20_000
"""The approximate number of events that are read before the rows of their jobs are compared."""
JOBS_AT_ONCE: Final = 500
"""Number of jobs that are derived again at once."""
SUSPECTS_MAX: Final = 1_000
"""Maximum number of jobs with differing rows that are derived again and reported; further jobs are only counted."""

Row = tuple[Any, ...]
"""A row of ``job`` or ``job_attempt``, as the driver returns it."""
_LAST: Final = slice(JOB_COLUMNS.index("last_epoch"), JOB_COLUMNS.index("last_seq") + 1)
_FENCE: Final = ATTEMPT_COLUMNS.index("fence")
_CLAIM: Final = ATTEMPT_COLUMNS.index("claim")

_JOB_ID: Final = JOB_COLUMNS.index("job_id")
assert ATTEMPT_COLUMNS[_JOB_ID] == "job_id"
STATEMENTS: Final[dict[str, type[SQLITE | POSTGRESQL]]] = {
    "sqlite": SQLITE,
    "postgresql": POSTGRESQL,
}
_SINCE_THEN: Final = text(
    "SELECT DISTINCT job_id FROM job_event WHERE queue = :queue AND (epoch, seq) > (:epoch, :seq) "
    "AND (epoch, seq) <= (:to_epoch, :to_seq) AND job_id IS NOT NULL"
)
_UNNAMED_JOBS: Final = text(
    "SELECT job_id, last_epoch, last_seq FROM job j WHERE j.queue = :queue AND NOT EXISTS ("
    "SELECT 1 FROM job_event e WHERE e.job_id = j.job_id AND e.queue = j.queue "
    "AND e.epoch = j.last_epoch AND e.seq = j.last_seq) ORDER BY job_id LIMIT 20"
)
_UNNAMED_CLAIMS: Final = text(
    "SELECT job_id, fence FROM job_attempt a WHERE a.queue = :queue AND NOT EXISTS ("
    "SELECT 1 FROM job j WHERE j.job_id = a.job_id AND j.queue = a.queue) "
    "ORDER BY job_id, fence LIMIT 20"
)
_COUNTS: Final = text(
    "SELECT (SELECT COUNT(*) FROM job WHERE queue = :queue) AS jobs, "
    "(SELECT COUNT(*) FROM job_attempt WHERE queue = :queue) AS claims"
)
_CURSOR: Final = text("SELECT epoch, seq FROM mirror_cursor WHERE queue = :queue")


class WrongRow(NamedTuple):
    """A row of ``job`` or ``job_attempt`` that differs from the events, is missing, or belongs to no event."""

    table: str
    at: OutboxId
    """The entry of the job's last event. If the job has no event, the last entry that SQL has."""
    ordinal: int
    at_ms: int
    job_id: str
    claim: int | None
    says: str


class RowProof:
    """Checks the rows of one queue. Call :meth:`feed` with all events in order, then :meth:`finish`, then read
    ``wrong``.
    """

    def __init__(
        self,
        database: Database,
        queue: str,
        end: tuple[int, int],
        orphaned: Sequence[orphans.Range],
        ends: Sequence[orphans.LossEnd],
    ) -> None:
        """Begin before the first event.

        ``end`` is the last entry that will be passed to :meth:`feed`. ``orphaned`` are the ranges of events that Redis
        forgot. ``ends`` are losses of Redis and complete baselines, which end live jobs without an event of the job.
        """
        self.database = database
        self.queue = queue
        self.wrong: list[WrongRow] = []
        self.more = 0
        """Number of further differing rows, of jobs that ``wrong`` leaves out. A job with several such rows counts
        several times."""
        self._end = end
        self._orphaned, self._ends = orphaned, ends
        self._derivation = Derivation(queue, ends, self._recall)
        self._waiting: dict[str, bytes] = {}
        """By id: jobs that have later events, according to their rows in SQL, than those read so far. Each is packed
        into bytes."""
        self._again = self._derivation.unmoved
        """Ids of jobs that must be derived again at the end: Redis forgot some of their events, some of their events
        change nothing, or they have events after ``end``."""
        self._suspects: set[str] = set()
        self._since_look = self._jobs_compared = self._claims_compared = 0

    def feed(self, rows: Sequence[EventRow]) -> None:
        """Derive rows from the next events. After about LOOKED_AT_ONCE events, compare the derived rows with SQL."""
        if self._orphaned:
            gone = [row for row in rows if orphans.in_any(row[1:3], self._orphaned)]
            self._again.update(row[6] for row in gone if row[6] is not None)
            if gone:
                rows = [row for row in rows if not orphans.in_any(row[1:3], self._orphaned)]
        self._derivation.feed(rows)
        self._since_look += len(rows)
        if self._since_look >= LOOKED_AT_ONCE:
            self.look()

    def _recall(self, job_id: str) -> Derived | None:
        packed = self._waiting.pop(job_id, None)
        return None if packed is None else Derived.unpacked(packed)

    def look(self) -> None:
        """Compare the rows of the jobs whose events have all been read. Pack the other jobs into bytes, to be compared
        later.
        """
        self._since_look = 0
        jobs = self._derivation.jobs
        due = [job_id for job_id, job in jobs.items() if job.named in (None, job.last)]
        if due:
            with self.database.snapshot() as connection:
                self._look_at(connection, due)
        for job_id, job in jobs.items():
            self._waiting[job_id] = job.packed()
        jobs.clear()

    def _look_at(self, connection: Connection, ids: list[str]) -> None:
        jobs, end = self._derivation.jobs, self._end
        level: dict[str, Derived] = {}
        rows = self._jobs(connection, ids)
        for row in rows:
            job = jobs[row[_JOB_ID]]
            job.named = named = row[_LAST]
            if named == job.last:
                level[row[_JOB_ID]] = job
                if self._ends:
                    job.pass_ends(self._ends)
                if tuple(job.row) != row:
                    self._suspect(job)
            elif named > end:
                self._again.add(row[_JOB_ID])
                del jobs[row[_JOB_ID]]
            elif named < job.last:
                self._suspect(jobs.pop(row[_JOB_ID]))
        if len(rows) < len(ids):
            for job_id in set(ids).difference(row[_JOB_ID] for row in rows):
                self._suspect(jobs.pop(job_id))
        self._look_at_claims(connection, level)
        for job_id in level:
            del jobs[job_id]

    def _look_at_claims(self, connection: Connection, level: dict[str, Derived]) -> None:
        """Compare the rows of all claims of the jobs in ``level``. All events of these jobs have been read."""
        claims = self._claims(connection, list(level))
        self._jobs_compared += len(level)
        self._claims_compared += len(claims)
        for claim in claims:
            job = level[claim[_JOB_ID]]
            made = job.attempts.pop(claim[_FENCE], None)
            if made is None or tuple(made) != claim:
                self._suspect(job)
        for job in level.values():
            if job.attempts:
                self._suspect(job)

    def _suspect(self, job: Derived) -> None:
        if len(self._suspects) < SUSPECTS_MAX:
            self._suspects.add(job.column("job_id"))
        else:
            self.more += 1

    def _jobs(self, connection: Connection, ids: list[str]) -> list[Row]:
        statement = STATEMENTS[self.database.dialect].JOBS
        return fetch(self.database, statement, self._of_jobs(ids), connection)

    def _claims(self, connection: Connection, ids: list[str]) -> list[Row]:
        statement = STATEMENTS[self.database.dialect].ATTEMPTS
        return fetch(self.database, statement, self._of_jobs(ids), connection) if ids else []

    def _of_jobs(self, ids: list[str]) -> tuple[Any, ...]:
        return self.queue, json.dumps(ids) if self.database.dialect == "sqlite" else ids

    # At the end.

    def finish(self, connection: Connection) -> None:
        """Check the rows that were not compared yet. ``connection`` must read one snapshot of the database."""
        self.look()
        for packed in self._waiting.values():
            self._suspect(Derived.unpacked(packed))
        self._waiting.clear()
        of_queue = {"queue": self.queue}
        upto = _upto(connection, self.queue)
        if upto > self._end:
            epoch, seq = self._end
            between = {"epoch": epoch, "seq": seq, "to_epoch": upto.epoch, "to_seq": upto.seq}
            self._again.update(connection.execute(_SINCE_THEN, of_queue | between).scalars())
        ids = sorted(self._again | self._suspects)
        self.derive_again(connection, ids, upto)
        counted = connection.execute(_COUNTS, of_queue).one()
        if not ids and tuple(counted) == (self._jobs_compared, self._claims_compared):
            return  # No row is left that was not compared.
        for row in connection.execute(_UNNAMED_JOBS, of_queue):
            at = OutboxId(row.last_epoch, row.last_seq)
            says = f"its row names {at} as its last event, which is not one of its events"
            self._say("job", at, 0, 0, row.job_id, None, says)
        for row in connection.execute(_UNNAMED_CLAIMS, of_queue):
            says = f"its claim {row.fence} has a row, and the job has none"
            self._say("job_attempt", upto, 0, 0, row.job_id, None, says)

    def derive_again(self, connection: Connection, ids: list[str], upto: OutboxId) -> None:
        """Compare the rows of these jobs with rows derived from all their events up to the entry ``upto``, SQL's last
        entry.
        """
        for begin in range(0, len(ids), JOBS_AT_ONCE):
            self._derive_again(connection, ids[begin : begin + JOBS_AT_ONCE], upto)

    def _derive_again(self, connection: Connection, ids: list[str], upto: OutboxId) -> None:
        surviving, whole = Derivation(self.queue, self._ends), Derivation(self.queue)
        told = [row for row in events_of(connection, self.queue, ids) if row[1:3] <= upto]
        whole.feed(told)
        surviving.feed(row for row in told if not orphans.in_any(row[1:3], self._orphaned))
        rows = {row[_JOB_ID]: row for row in self._jobs(connection, ids)}
        claims: dict[str, list[Row]] = {}
        for told_claim in self._claims(connection, ids):
            claims.setdefault(told_claim[_JOB_ID], []).append(told_claim)
        for job_id in ids:
            job = surviving.jobs.get(job_id)
            if job is None and (job := whole.jobs.get(job_id)) is not None:
                job.forgotten()
            if job is None:
                if job_id in rows:
                    says = "it has a row that no event made"
                    self._say("job", upto, 0, 0, job_id, None, says)
                continue
            job.pass_ends(self._ends)
            for table, claim, says in _differences(job, rows.get(job_id), claims.get(job_id, ())):
                at = OutboxId(*job.last)
                self._say(table, at, job.ordinal, job.at_ms, job_id, claim, says)

    def _say(self, *facts: Any) -> None:
        self.wrong.append(WrongRow(*facts))


def wrong_rows(
    database: Database, connection: Connection, queue: str, ids: list[str]
) -> dict[str, str]:
    """Return, by job id, how a job's row of ``job`` differs from the job's events. Only the jobs ``ids`` are checked.
    Jobs whose row is right are left out; rows of claims are not reported.

    ``connection`` must read one snapshot of ``database``.
    """
    orphaned = orphans.ranges(connection, queue)
    upto = _upto(connection, queue)
    proof = RowProof(database, queue, upto, orphaned, orphans.ends(connection, queue, orphaned))
    proof.derive_again(connection, ids, upto)
    return {wrong.job_id: wrong.says for wrong in proof.wrong if wrong.table == "job"}


def _upto(connection: Connection, queue: str) -> OutboxId:
    """Return the last entry that SQL has."""
    cursor = connection.execute(_CURSOR, {"queue": queue}).one()
    return OutboxId(cursor.epoch or 0, -1 if cursor.seq is None else cursor.seq)


def _differences(
    job: Derived, row: Row | None, claims: Iterable[Row]
) -> Iterator[tuple[str, int | None, str]]:
    """Yield each difference between a job's rows in SQL and the rows derived from its events: the table, the number of
    the claim (None for the job's row), and a phrase.
    """
    if row is None:
        yield "job", None, "its row is missing"
    elif row != tuple(job.row):
        yield "job", None, _unlike(JOB_COLUMNS, row, job.row)
    left = dict(job.attempts)
    for claim in claims:
        made = left.pop(claim[_FENCE], None)
        if made is None:
            says = f"its claim {claim[_FENCE]} has a row that no event made"
            yield "job_attempt", claim[_CLAIM], says
        elif claim != tuple(made):
            yield "job_attempt", made[_CLAIM], _unlike(ATTEMPT_COLUMNS, claim, made)
    for fence, made in left.items():
        yield "job_attempt", made[_CLAIM], f"the row of its claim {fence} is missing"


def _unlike(columns: Sequence[str], row: Row, made: Sequence[Any]) -> str:
    """Return a phrase that names the columns in which a row differs from the row derived from the events."""
    pairs = zip(columns, row, made, strict=True)
    found = [f"{name} is {is_!r}, by its events {by!r}" for name, is_, by in pairs if is_ != by]
    return ", ".join(found)
