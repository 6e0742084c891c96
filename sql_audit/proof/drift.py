"""Whether Redis and SQL tell the same story now (invariants I7 and I8). Part of ``audit verify``.

I7: what the outbox still has of what is mirrored is what SQL has, and what follows is all there.
I8: the projection ``job``, with the entries that are not mirrored yet folded onto it, is what the
queue's ``jobs`` and ``state`` say; and the queue's indexes are what :mod:`rq_core.doctor` expects.

The log need not be at rest, nor the mirror level: one snapshot of Redis has the state and the
entries that SQL lacks, as they were at one moment.
"""

# ruff: noqa: S608 - statements are joined from the machine's own words; values are bound

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.exc import NoResultFound, SQLAlchemyError

from rq_core.connections.client import Client
from rq_core.doctor import Kind, diagnose
from rq_core.doctor.view import View
from rq_core.model.events import JobRecord, OutboxId, Undecodable, decode, fold
from rq_core.model.fields import BY_LINE
from rq_core.model.machine import State
from rq_core.model.scopes import scopes_of
from rq_core.model.state_line import Job
from sql_audit.errors import AuditUnavailable
from sql_audit.mirror.intake import fingerprint
from sql_audit.proof.replay import Note, Violation
from sql_audit.store import migrate
from sql_audit.store.database import Database
from sql_audit.store.driver_errors import describe
from sql_audit.store.statements import CURSOR
from sql_audit.store.tables import QUARANTINED

LOOKS: Final = 5
"""How often both sides are read before it counts that they do not meet: the mirror may trim between."""

REPORTED_MAX: Final = 20
"""Differences of each kind that are told."""

_LIVE: Final = text(
    "SELECT * FROM job WHERE queue = :queue AND state IN "
    f"({', '.join(repr(str(state)) for state in State)})"
)
_ENTRIES: Final = text(
    "SELECT epoch, seq, ordinal, type, at_ms, job_id FROM job_event "
    "WHERE queue = :queue AND (epoch, seq) >= (:epoch, :seq) ORDER BY epoch, seq, ordinal"
)

_PASSED_OVER: Final = frozenset({Kind.LOG_DIFFERS, Kind.UNLOGGED, Kind.LOST, Kind.NO_WAKE})
"""The log is compared here, and further back than Redis knows it; a worker on its way to a claim
looks as if nobody would wake."""

RawLog = Sequence[tuple[str, Mapping[str, str]]]


def drift_of(url: str, client: Client, queue: str) -> list[tuple[str | None, str]]:
    """What Redis and the database at ``url`` tell differently of a queue, by job, as ``rq-core doctor`` asks for it.

    The queue's own indexes, which the doctor has looked at, are left out. Raises RqCoreError where one of the two does
    not answer, or SQL does not know the queue.
    """
    database = Database(url)
    try:
        migrate.check_current(database)
        violations, notes = compare(client, database, queue, indexes=False)
    except NoResultFound:
        raise AuditUnavailable(url=database.url, why=f"it has nothing of queue {queue}") from None
    except SQLAlchemyError as error:
        raise AuditUnavailable(url=database.url, why=describe(error)) from None
    finally:
        database.close()
    told = [(violation.job_id, violation.says) for violation in violations]
    return [*told, *((None, note.says) for note in notes)]


def compare(
    client: Client, database: Database, queue: str, *, indexes: bool = True
) -> tuple[list[Violation], list[Note]]:
    """What Redis and SQL disagree about, and why that cannot be told; and with ``indexes`` what Redis itself does.

    Raises what Redis raises when it does not answer.
    """
    for _ in range(LOOKS):
        with database.readers.connect() as connection:
            if database.dialect == "postgresql":
                connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            cursor = connection.execute(CURSOR, {"queue": queue}).one()
            live = connection.execute(_LIVE, {"queue": queue}).mappings().all()
        position = None if cursor.epoch is None else OutboxId(cursor.epoch, cursor.seq)
        snapshot = client.run(client.calls.reads.snapshot(queue))
        log: RawLog = snapshot["outbox"]
        if position is None:
            return [], [Note(OutboxId(0, 0), 0, "nothing is mirrored yet")]
        if any(OutboxId.parse(entry_id) == position for entry_id, _ in log):
            break
    else:
        says = f"Redis does not have {position}, the last entry that SQL has"
        return [_violation(cursor, "I7", None, says)], []
    tail = [(at, raw) for at, raw in log if OutboxId.parse(at) > position]
    found = [_violation(cursor, "I7", None, says) for says in _stream(database, cursor, log)]
    view = View(snapshot)
    records = {row["job_id"]: _record(row) for row in live}
    notes = []
    try:
        for at, raw in tail:
            entry = decode(at, raw)
            for event in entry.jobs:
                records[event.job_id], _ = fold(records.get(event.job_id), entry, event)
    except (Undecodable, ValueError, TypeError) as error:
        notes.append(Note(position, cursor.at_ms, f"an entry in Redis cannot be read: {error}"))
        return found, notes
    for job_id, says in _differences(view, records):
        found.append(_violation(cursor, "I8", job_id, says))
    found += [
        _violation(cursor, "I8", finding.job_id, finding.says)
        for finding in (diagnose(client, queue) if indexes else ())
        if finding.kind not in _PASSED_OVER
    ]
    return found, notes


def _violation(cursor: Row[Any], invariant: str, job_id: str | None, says: str) -> Violation:
    return Violation(
        invariant, cursor.queue, cursor.epoch, cursor.seq, 0, cursor.at_ms or 0, "redis", job_id,
        None, None, says,
    )  # fmt: skip


def _record(row: Mapping[Any, Any]) -> JobRecord:
    record = JobRecord(row["job_id"], State(row["state"]))
    for name in JobRecord.__slots__:
        if name not in ("id", "state"):
            setattr(record, name, row[name])
    return record


def _stream(database: Database, cursor: Row[Any], log: RawLog) -> Iterator[str]:
    """What the entries that both have are told differently, and what is missing between them."""
    position = OutboxId(cursor.epoch, cursor.seq)
    first = OutboxId.parse(log[0][0])
    ours: dict[OutboxId, list[tuple[str, int, str | None]]] = {}
    with database.readers.connect() as connection:
        at = {"queue": cursor.queue, "epoch": first.epoch, "seq": first.seq}
        for row in connection.execute(_ENTRIES, at):
            told = row.type, row.at_ms, row.job_id
            ours.setdefault(OutboxId(row.epoch, row.seq), []).append(told)
    before: OutboxId | None = None
    reported = 0
    for entry_id, raw in log:
        at_id = OutboxId.parse(entry_id)
        if before is not None and at_id.epoch == before.epoch and at_id.seq != before.seq + 1:
            yield f"Redis lacks entries between {before} and {at_id}"
        before = at_id
        if at_id > position or reported >= REPORTED_MAX:
            continue
        if at_id == position and cursor.anchor and fingerprint(raw) != cursor.anchor:
            reported += 1
            yield f"Redis has another entry {entry_id} than the one that was mirrored last"
        problem = _told_otherwise(entry_id, raw, ours.get(at_id, []))
        if problem is not None:
            reported += 1
            yield problem


def _told_otherwise(
    entry_id: str, raw: Mapping[str, str], ours: list[tuple[str, int, str | None]]
) -> str | None:
    if not ours:
        return f"SQL does not have entry {entry_id}"
    try:
        entry = decode(entry_id, raw)
    except Undecodable:
        return None  # in quarantine
    kind = str(entry.event)
    theirs: list[tuple[str, int, str | None]] = [
        (kind, entry.at_ms, job.job_id) for job in entry.jobs
    ] or [(kind, entry.at_ms, None)]
    if ours != theirs and QUARANTINED not in {told[0] for told in ours}:
        return f"entry {entry_id} is told otherwise by Redis than by SQL"
    return None


def _both(job: Job, record: JobRecord) -> Iterator[tuple[str, Any, Any]]:
    """The fields of a job: as Redis has them, and as the log does."""
    for name in BY_LINE if record.complete else ("due", "since"):
        yield name, job.value(name), getattr(record, BY_LINE[name].name)


def _same_lane(record: JobRecord, actual: str | None, logged: str | None) -> bool:
    """Whether two lanes differ only by the task's scope, which a job takes up without an event when
    its task gets a cap.
    """
    task = f"task={record.task}"
    actual_scopes, logged_scopes = (
        set(scopes_of(lane or "")) - {task} for lane in (actual, logged)
    )
    return actual_scopes == logged_scopes


def _differences(view: View, records: Mapping[str, JobRecord]) -> Iterator[tuple[str, str]]:
    """Jobs of which the state lines and the log say different things."""
    reported = 0
    for job_id in sorted({*view.jobs, *records}):
        record, job = records.get(job_id), view.jobs.get(job_id)
        logged = None if record is None else record.state
        actual = None if job is None else job.state
        if job_id in view.unreadable:
            continue
        if actual is not logged:
            says = [f"{actual or 'gone'} in Redis, {logged or 'gone'} by the log"]
        elif job is None or record is None:
            continue
        else:
            says = [
                f"{name}={actual} in Redis, {logged} by the log"
                for name, actual, logged in _both(job, record)
                if actual != logged and not (name == "lane" and _same_lane(record, actual, logged))
            ]
        if says:
            reported += 1
            yield job_id, "; ".join(says)
        if reported >= REPORTED_MAX:
            return
