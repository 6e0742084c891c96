"""Compares the current state of Redis with SQL (invariants I7, I8, I13 and I14), for ``audit verify`` and the doctor.

For I7, the mirrored entries that are still in the outbox must equal SQL's events, and no entry may be missing in the
outbox. For the other invariants, :mod:`rq_core.doctor` compares the data, and
:mod:`sql_audit.proof.compare.job_histories` gives the doctor SQL's history.

The queue may be busy, and the mirror may lag: :mod:`sql_audit.proof.compare.consistent_read` reads Redis and SQL in the
state of one moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from types import SimpleNamespace
from typing import Any, Final

from sqlalchemy import Connection, text
from sqlalchemy.exc import NoResultFound, SQLAlchemyError

from rq_core.connections.client import Client
from rq_core.doctor import Evidence, Finding, Kind, examined
from rq_core.doctor.line_check import unlike
from rq_core.doctor.log import FoldedLog, read_log
from rq_core.doctor.snapshot import StateLines
from rq_core.errors import AuditElsewhere, ServerUnsuitable
from rq_core.model.events import OutboxId, Undecodable, decode, fold
from sql_audit.errors import QueueNotMirrored, RowDamaged
from sql_audit.mirror.intake import Intake, fingerprint, take
from sql_audit.proof.compare import box_histories, consistent_read, job_histories
from sql_audit.proof.compare.trusted_rows import distrust_of, why_not_rows
from sql_audit.proof.event_details import facts_in
from sql_audit.proof.findings import Note, Violation
from sql_audit.proof.result import QueueResult
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.driver_errors import failure
from sql_audit.store.connection.statements import AUDIT_ID
from sql_audit.store.job_rows import EventRow
from sql_audit.store.log_queues import origins
from sql_audit.store.schema.tables import QUARANTINED

REPORTED_MAX: Final = 20
"""Maximum number of differences that are reported for each invariant."""

_PASSED_OVER: Final = frozenset({Kind.NO_WAKE, Kind.LOG_UNREADABLE})
"""Kinds of the doctor's findings that are not reported here. NO_WAKE: while a worker claims jobs, the queue may lack a
wake token although nothing is wrong. LOG_UNREADABLE: an entry that cannot be read is in quarantine, or will be."""
_INVARIANTS: Final = {"id": "I14", "name": "I13"}
"""The invariant that a finding violates, if the finding is about an id or a name. Findings about anything else violate
I8; findings of the kind DRIFT always violate I7."""
_NOWHERE: Final = SimpleNamespace(epoch=0, seq=0, at_ms=0)


def drift_of(url: str, client: Client, queue: str) -> Evidence:
    """Compare a queue in Redis with the audit database at ``url``. Return the evidence from which ``rq-core doctor``
    judges the queue.

    Raise RqCoreError if Redis or SQL does not answer, or if SQL does not have the queue.
    """
    database = Database(url)
    try:
        migrate.check_current(database)
        return _look(client, database, queue)[0]
    except NoResultFound:
        audit, holder, _ = client.run(client.calls.reads.attached(queue))
        with database.readers.connect() as connection:
            ours = connection.execute(AUDIT_ID).scalar_one()
        if audit == "on" and holder != ours:
            raise AuditElsewhere(queue=queue, attached=holder) from None
        raise QueueNotMirrored(queue=queue, known=_known(database)) from None
    except SQLAlchemyError as error:
        raise failure(database.url, error) from None
    finally:
        database.close()


def _known(database: Database) -> str:
    with database.readers.connect() as connection:
        queues = connection.execute(
            text("SELECT queue FROM mirror_cursor ORDER BY queue")
        ).scalars()
        return ", ".join(queues) or "none"


def compare(client: Client, database: Database, queue: str) -> tuple[list[Violation], list[Note]]:
    """Compare a queue in Redis with SQL, and the queue's indexes in Redis with its state lines. Return the violations,
    and notes on what cannot be decided.

    Raise the errors of Redis if it does not answer.
    """
    look, cursor = _look(client, database, queue)
    found = look.findings if look.log is None else examined(client, queue, look)
    violations: list[Violation] = []
    notes: list[Note] = []
    told: Counter[str] = Counter()
    for finding in found:
        if finding.kind in _PASSED_OVER:
            continue
        kind, name = finding.owner or ("", "")
        invariant = "I7" if finding.kind is Kind.DRIFT else _INVARIANTS.get(kind, "I8")
        told[invariant] += 1
        if told[invariant] > REPORTED_MAX:
            continue
        at = OutboxId(cursor.epoch or 0, cursor.seq or 0)
        if finding.kind is Kind.UNKNOWN or finding.lost is not None:
            notes.append(Note(at, cursor.at_ms or 0, finding.says, finding.lost))
            continue
        violation = Violation(
            invariant, queue, *at, 0, cursor.at_ms or 0, "redis",
            name if kind == "id" else finding.job_id, None, None, finding.says,
        )  # fmt: skip
        violations.append(violation)
    return violations, notes


def unmirrored(client: Client, database: Database) -> dict[str, QueueResult]:
    """Return a result for each queue that this database should mirror, according to Redis, but that SQL does not have.

    Each result has a note on the cause. The results are by queue.
    """
    with database.readers.connect() as connection:
        ours = connection.execute(AUDIT_ID).scalar_one()
        known = origins(connection)
    found = {}
    for queue in client.run(client.calls.reads.queues()):
        if queue in known:
            continue
        try:
            audit, holder, trimmed = client.run(client.calls.reads.attached(queue))
        except ServerUnsuitable:
            continue  # This user may not read the queue.
        if (audit, holder) == ("on", ours):
            says = f"SQL has nothing of the queue, and Redis was trimmed for this database up to {trimmed}: {_WHY}"
            if trimmed in (None, "0-0"):
                says = "Redis has attached the queue to this database, and nothing of it is mirrored yet"
            found[queue] = QueueResult(
                queue, None, None, None, "-", notes=[Note(OutboxId(0, 0), 0, says)]
            )
    return found


_WHY: Final = (
    "is it a standby that lags, a copy, or restored from a backup, or was the queue deleted there?"
)


def _look(client: Client, database: Database, queue: str) -> tuple[Evidence, Any]:
    """Read a queue from Redis and from SQL, and compare them. Return evidence for ``rq-core doctor``, and the queue's
    row of ``mirror_cursor``.

    Raise LayoutMismatch if this release cannot read the queue's keys.
    """
    for error in client.run(client.calls.reads.other_layouts([queue])).values():
        raise error
    try:
        both = consistent_read.read_both(client, database, queue)
    except consistent_read.Deleted as error:
        return Evidence({}), error.cursor
    except consistent_read.CannotTell as error:
        lost = error.alive if isinstance(error, consistent_read.QueueLost) else None
        kind = Kind.UNKNOWN if lost is None else Kind.DRIFT
        return Evidence({}, findings=[Finding(kind, str(error), lost=lost)]), error.cursor
    except (
        RowDamaged, ValueError, TypeError, LookupError, AttributeError, RecursionError,
    ) as error:  # fmt: skip
        return _unreadable(error), _NOWHERE
    try:
        return _compared(database, queue, both), both.cursor
    except (
        RowDamaged, Undecodable, ValueError, TypeError, LookupError, AttributeError, RecursionError,
    ) as error:  # fmt: skip
        return _unreadable(error), both.cursor


def _unreadable(error: Exception) -> Evidence:
    # One damaged row must not end the check of all queues; `audit verify` names the row.
    says = f"SQL has a row that cannot be read ({type(error).__name__}: {error})"
    return Evidence({}, findings=[Finding(Kind.UNKNOWN, says)])


def _compared(database: Database, queue: str, both: consistent_read.Sides) -> Evidence:
    upto, records = both.upto, both.records
    entries = [(OutboxId.parse(at), raw) for at, raw in both.log]
    if all(at != upto for at, _ in entries):
        says = f"Redis does not have {upto}, the last entry that SQL has"
        return Evidence(both.redis, findings=[Finding(Kind.DRIFT, says)])
    found = [Finding(Kind.DRIFT, says) for says in _stream(both)]
    try:
        for at, raw in entries:
            if at > upto:
                entry = decode(str(at), raw)
                for event in entry.jobs:
                    records[event.job_id], _ = fold(records.get(event.job_id), entry, event)
    except (Undecodable, ValueError, TypeError) as error:
        says = f"an entry in Redis cannot be read: {error}"
        return Evidence(both.redis, findings=[*found, Finding(Kind.UNKNOWN, says)])
    log = read_log(both.redis)
    log.moving |= both.moving
    log.only_sql = records.keys() - log.records.keys()
    log.records.update(records)
    with database.snapshot() as connection:
        # SQL may have later entries by now than were read from Redis.
        history = job_histories.History(connection, queue, both.redis, log, both.position)
        found += [Finding(Kind.DRIFT, says, owner=("id", "")) for says in history.tell()]
        lines = StateLines(both.redis)
        standing = lines.standing
        log.distrust = distrust_of(database, queue, box_histories.TYPES)
        types = [*map(str, job_histories.TYPES)]
        log.distrust_ends = distrust_of(database, queue, types, both.redis["results"])
        box_histories.tell_boxes(connection, queue, both.redis, log, standing, both.position)
        for job_id in chain(standing, (each for each in records if each not in standing)):
            unread = history.unread(job_id)
            if unread is not None:
                if _differs(job_id, lines, log):
                    found.append(_doubted(job_id, unread))
                _doubt(log, job_id)
        found += _false_rows(database, connection, queue, both, log, lines)
    return Evidence(both.redis, log, found, lines)


def _differs(job_id: str, lines: StateLines, log: FoldedLog) -> bool:
    """Return whether a job's state in Redis (its line) differs from the state that the log gives, or cannot be read."""
    if job_id in lines.unreadable:
        return True
    job, record = lines.jobs.get(job_id), log.records.get(job_id)
    with suppress(ValueError):
        state = None if record is None else record.state
        return (job and job.state) is not state or bool(job and record and any(unlike(job, record)))
    return True


def _doubted(job_id: str, at: OutboxId) -> Finding:
    """Return a finding that a job's states in Redis and in the log differ, and that either may be right.

    A quarantined outbox entry, ``at``, names the job: the log may lack an event of the job.
    """
    says = f"job {job_id} differs between Redis and SQL, and entry {at}, which names it, is in quarantine"
    return Finding(Kind.UNKNOWN, says, job_id)


def _false_rows(
    database: Database,
    connection: Connection,
    queue: str,
    both: consistent_read.Sides,
    log: FoldedLog,
    lines: StateLines,
) -> Iterator[Finding]:
    """Yield a finding for each job whose states in Redis and SQL differ, if its row in SQL is not confirmed by its
    events.

    Remove such a job's state from ``log``, so that no repair of Redis uses it. A job that only SQL has is not checked,
    since no repair adds it to Redis.
    """
    standing, specs = lines.standing, both.redis["jobs"]
    without_line = (
        job_id
        for job_id, record in log.records.items()
        if record.state
        and job_id not in standing
        and (job_id in specs or job_id not in log.only_sql)
    )
    # A job with events between two pages of the read may differ for a moment.
    passed_over = log.doubtful | log.moving
    differing = [
        job_id
        for job_id in chain(standing, without_line)
        if job_id not in passed_over and _differs(job_id, lines, log)
    ]
    doubts = why_not_rows(database, connection, queue, differing) if differing else {}
    for job_id, why in doubts.items():
        _doubt(log, job_id)
        yield Finding(
            Kind.LOG_DIFFERS, f"job {job_id} differs between Redis and SQL; {why}", job_id
        )


def _doubt(log: FoldedLog, job_id: str) -> None:
    """Remove what the log says about a job, so that no repair of Redis uses it."""
    log.records.pop(job_id, None)
    log.began.pop(job_id, None)
    log.doubtful.add(job_id)


def _stream(both: consistent_read.Sides) -> Iterator[str]:
    """Yield a sentence for each missing entry number in Redis, and for each entry that differs between Redis and SQL.

    After about REPORTED_MAX differing entries, further differing entries are not reported.
    """
    before: OutboxId | None = None
    reported = 0
    for entry_id, raw in both.log:
        at = OutboxId.parse(entry_id)
        if before is not None and at.epoch == before.epoch and at.seq != before.seq + 1:
            yield f"Redis lacks entries between {before} and {at}"
        before = at
        if at > both.position or reported >= REPORTED_MAX:
            continue
        anchor = both.cursor.anchor
        if at == both.position and anchor and fingerprint(raw) != anchor:
            reported += 1
            yield f"Redis and SQL differ in entry {entry_id}, the last one mirrored"
        problem = _told_otherwise(entry_id, raw, both.events.get(at, []))
        if problem is not None:
            reported += 1
            yield problem


def _told_otherwise(entry_id: str, raw: Mapping[str, str], rows: list[EventRow]) -> str | None:
    if not rows:
        return f"SQL does not have entry {entry_id}"
    told = take(OutboxId.parse(entry_id), raw)
    aside = {row[3] for row in rows if row[4] == QUARANTINED}
    theirs = [each for each in _by_redis(told) if each[0] not in aside]
    ours = [_by_sql(row, told) for row in rows if row[3] not in aside]
    return None if ours == theirs else f"entry {entry_id} differs between Redis and SQL"


_Event = tuple[int, str, int, str | None, dict[str, Any]]
"""An event in a form that can be compared: its position in its entry, type, time (Unix ms), actor, and the fields that
are not null."""


def _by_redis(told: Intake) -> Iterator[_Event]:
    """Yield the events of a checked outbox entry, without those that the mirror would put into quarantine."""
    kind, why = str(told.event), {} if told.why is None else {"why": told.why}
    of_job = [
        zip(told.columns, each, strict=True) for each in zip(*told.columns.values(), strict=True)
    ]
    for ordinal, facts in zip(told.ordinals, of_job, strict=True):
        yield ordinal, kind, told.at_ms or 0, told.by, why | _said(facts)
    if told.event is not None and not told.columns:
        yield 0, kind, told.at_ms or 0, told.by, why | _said(told.data.items())


def _said(facts: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in facts if value is not None}


def _by_sql(row: EventRow, told: Intake) -> _Event:
    """Convert a row of ``job_event`` to the form in which it is compared with the same event in Redis' outbox.

    If Redis' event has no task or claim, the row's task or claim is left out: the mirror took it from the job's row.
    """
    columns = {"id": row[6], "claim": row[7], "task": row[9]}
    named = {name: value for name, value in columns.items() if name in told.columns}
    return row[3], row[4], row[5], row[8], {**facts_in(row[10]), **_said(named.items())}
