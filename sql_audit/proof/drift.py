"""Whether Redis and SQL tell the same story now (invariants I7, I8 and I14). Part of ``audit verify``.

I7: what the outbox still has of what is mirrored is what SQL has, and what follows is all there.
I8: the projection ``job``, with the entries that are not mirrored yet folded onto it, is what the
queue's ``jobs`` and ``state`` say; and the queue's indexes are what :mod:`rq_core.doctor` expects.
I13: a name stands until the instant that the log says, if it stands until one.
I14: a result that Redis keeps is the one that the log says, and so is what it says of an id that is remembered
(:mod:`sql_audit.proof.values`).

The log need not be at rest, nor the mirror level: :mod:`sql_audit.proof.sides` reads both as they were at one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy import Row, text
from sqlalchemy.exc import NoResultFound, SQLAlchemyError

from rq_core.connections.client import Client
from rq_core.doctor import Kind, diagnose, stands
from rq_core.doctor.unlike import line_by
from rq_core.doctor.view import View
from rq_core.errors import ServerUnsuitable
from rq_core.model.events import JobRecord, OutboxId, Undecodable, decode, fold
from rq_core.model.fields import BY_LINE
from rq_core.model.names import read_holder
from rq_core.model.plugins import Differences
from rq_core.model.scopes import scopes_of
from rq_core.model.state_line import Job
from sql_audit.errors import QueueNotMirrored
from sql_audit.mirror.intake import Intake, fingerprint, take
from sql_audit.proof import sides, told, values
from sql_audit.proof.details import facts_in
from sql_audit.proof.findings import Note, Violation
from sql_audit.proof.lives import IDS_CHUNK, Told
from sql_audit.proof.result import QueueResult
from sql_audit.store import migrate
from sql_audit.store.database import Database
from sql_audit.store.driver_errors import failure
from sql_audit.store.mirrored import origins
from sql_audit.store.rows import EventRow
from sql_audit.store.statements import AUDIT_ID
from sql_audit.store.tables import QUARANTINED

REPORTED_MAX: Final = 20
"""Differences of each kind that are told."""

_PASSED_OVER: Final = frozenset(
    {Kind.LOG_DIFFERS, Kind.LOG_UNREADABLE, Kind.UNLOGGED, Kind.LOST, Kind.NO_WAKE}
)
"""The log is compared here, and further back than Redis knows it, and what cannot be read of it is in quarantine or
will be; a worker on its way to a claim looks as if no worker would wake."""


def drift_of(url: str, client: Client, queue: str) -> Differences:
    """What Redis and the database at ``url`` tell differently of a queue, as ``rq-core doctor`` asks for it.

    The queue's own indexes, which the doctor has looked at, are left out. Raises RqCoreError where one of the two does
    not answer, or SQL does not know the queue.
    """
    database = Database(url)
    try:
        migrate.check_current(database)
        found = _compare(client, database, queue, indexes=False)
    except NoResultFound:
        raise QueueNotMirrored(queue=queue, known=_known(database)) from None
    except SQLAlchemyError as error:
        raise failure(database.url, error) from None
    finally:
        database.close()
    kept = [each for each in found.kept if not each.mendable]
    differences = [(violation.job_id, violation.says) for violation in found.violations]
    differences += [(None, note.says) for note in found.notes if note.lost is not None]
    differences += [(each.id, each.says) for each in kept[:REPORTED_MAX]]
    results = {each.id: (each.line, each.end) for each in found.kept if each.mendable}
    notes = [note.says for note in found.notes if note.lost is None]
    return Differences(differences, notes, found.lines, results, found.names)


def _known(database: Database) -> str:
    with database.readers.connect() as connection:
        queues = connection.execute(
            text("SELECT queue FROM mirror_cursor ORDER BY queue")
        ).scalars()
        return ", ".join(queues) or "none"


def compare(
    client: Client, database: Database, queue: str, *, indexes: bool = True
) -> tuple[list[Violation], list[Note]]:
    """What Redis and SQL disagree about, and why that cannot be told; and with ``indexes`` what Redis itself does.

    Raises what Redis raises when it does not answer.
    """
    found = _compare(client, database, queue, indexes=indexes)
    violations = [*found.violations]
    if found.cursor is not None:
        of_redis = partial(_violation, found.cursor)
        violations += [of_redis("I14", each.id, each.says) for each in found.kept[:REPORTED_MAX]]
        for field, (seen, at_ms) in islice(found.names.items(), REPORTED_MAX):
            says = (
                f"{field!r} in `slots` has {seen!r}, and by the log that name stands until {at_ms}"
            )
            violations.append(of_redis("I13", None, says))
    return violations, [*found.notes]


def unmirrored(client: Client, database: Database) -> dict[str, QueueResult]:
    """The queues that are attached to this database, by Redis, and of which SQL has nothing, with why that cannot be
    told: they may have been deleted there."""
    with database.readers.connect() as connection:
        ours = connection.execute(AUDIT_ID).scalar_one()
        known = origins(connection)
    found = {}
    for queue in client.run(client.calls.reads.queues()):
        if queue in known:
            continue
        try:
            audit, audit_id, trimmed = client.run(client.calls.reads.attached(queue))
        except ServerUnsuitable:
            continue  # This user may not look at the queue.
        if (audit, audit_id) == ("on", ours):
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


class _Found(NamedTuple):
    """What a comparison has found; ``kept`` and ``names`` the doctor can mend."""

    violations: list[Violation]
    notes: Sequence[Note] = ()
    lines: Mapping[str, tuple[str | None, str | None]] | None = None
    """The lines that jobs are to have (see Differences)."""
    cursor: Row[Any] | None = None
    kept: Sequence[values.Unlike] = ()
    names: Mapping[str, tuple[str, int]] = MappingProxyType({})


def _compare(client: Client, database: Database, queue: str, *, indexes: bool) -> _Found:
    try:
        return _compare_rows(client, database, queue, indexes=indexes)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # One damaged row must not end a look at all queues; `audit verify` says which it is.
        says = f"SQL has a row that cannot be read ({type(error).__name__}: {error})"
        return _Found([], [Note(OutboxId(0, 0), 0, says)])


def _compare_rows(client: Client, database: Database, queue: str, *, indexes: bool) -> _Found:
    try:
        both = sides.look(client, database, queue)
    except sides.Deleted:
        return _Found([])
    except sides.CannotTell as error:
        cursor = error.cursor
        at = OutboxId(cursor.epoch or 0, cursor.seq or 0)
        lost = error.alive if isinstance(error, sides.Lost) else None
        return _Found([], [Note(at, cursor.at_ms or 0, str(error), lost)])
    cursor, upto = both.cursor, both.upto
    entries = [(OutboxId.parse(at), raw) for at, raw in both.log]
    if all(at != upto for at, _ in entries):
        says = f"Redis does not have {upto}, the last entry that SQL has"
        return _Found([_violation(cursor, "I7", None, says)])
    found = [_violation(cursor, "I7", None, says) for says in _stream(both)]
    records = both.records
    try:
        for at, raw in entries:
            if at > upto:
                entry = decode(str(at), raw)
                for event in entry.jobs:
                    records[event.job_id], _ = fold(records.get(event.job_id), entry, event)
    except (Undecodable, ValueError, TypeError) as error:
        says = f"an entry in Redis cannot be read: {error}"
        return _Found(found, [Note(upto, cursor.at_ms, says)])
    view = View(both.redis)
    notes: list[Note] = []
    with database.snapshot() as connection:
        # SQL may be ahead by now of what was read of Redis.
        log = told.log_of(connection, queue, entries[-1][0])
        of_jobs = Told(connection, queue, view, both.position)
        kept = list(values.unlike(connection, queue, view, of_jobs))
        names = _names(of_jobs, view)
        unread = {job_id for job_id in {*view.jobs, *records} if of_jobs.unread(job_id) is not None}
        wrong = 0
        for job_id, says in _differences(view, records):
            if job_id in unread:
                why = f"entry {of_jobs.unread(job_id)}, which names it, is in quarantine"
                notes.append(Note(upto, cursor.at_ms, f"job {job_id}: {says}, and {why}"))
            elif (wrong := wrong + 1) <= REPORTED_MAX:
                found.append(_violation(cursor, "I8", job_id, says))
    known = {job_id: record for job_id, record in records.items() if job_id not in unread}
    found += [
        _violation(cursor, "I8", None, finding.says)
        for finding in told.differences(log, view, both.position)
    ]
    found += [
        _violation(cursor, "I8", finding.job_id, finding.says)
        for finding in (diagnose(client, queue) if indexes else ())
        if finding.kind not in _PASSED_OVER
    ]
    return _Found(found, notes[:REPORTED_MAX], dict(_lines(view, known)), cursor, kept, names)


def _names(log: Told, view: View) -> dict[str, tuple[str, int]]:
    """The names that stand until another instant by the log, where the outbox alone does not tell that: what their
    fields have, and that instant."""
    slots = view.snapshot["slots"]
    holders = {read_holder(slots[field]).job_id for field in stands.until_instants(slots)}
    ids = sorted(holders - view.log.lives.began.keys())
    found: dict[str, tuple[str, int]] = {}
    for n in range(0, len(ids), IDS_CHUNK):
        lives = log.lives(ids[n : n + IDS_CHUNK])
        found |= {field: (slots[field], at_ms) for field, at_ms in stands.unlike(slots, lives)}
    return found


def _lines(
    view: View, records: Mapping[str, JobRecord]
) -> Iterator[tuple[str, tuple[str | None, str | None]]]:
    """The jobs whose arguments Redis has and that it does not tell as the log does: how each stands in Redis, and the
    line that it is to have."""
    for job_id in view.snapshot["jobs"]:
        line, record = view.standing.get(job_id), records.get(job_id)
        mended = None
        if record is not None and record.state is not None:
            in_state = job_id in view.snapshot["state"]
            mended = line_by(record, line, view.snapshot["caps"], in_state=in_state)
        if line is None or mended is not None:
            yield job_id, (line, mended)


def _violation(cursor: Row[Any], invariant: str, job_id: str | None, says: str) -> Violation:
    return Violation(
        invariant, cursor.queue, cursor.epoch, cursor.seq, 0, cursor.at_ms or 0, "redis", job_id,
        None, None, says,
    )  # fmt: skip


def _stream(both: sides.Sides) -> Iterator[str]:
    """What the entries that both have are told differently, and what is missing between them."""
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
    return None if ours == theirs else f"entry {entry_id} is told otherwise by Redis than by SQL"


_Event = tuple[int, str, int, str | None, dict[str, Any]]
"""One event: its ordinal, type, time and actor, and the fields that are not null."""


def _by_redis(told: Intake) -> Iterator[_Event]:
    """Yield the events of an entry, but for those that the mirror puts into quarantine."""
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
    """The event of a row. It has its job's task and claim, too, where the event in Redis does not name them."""
    columns = {"id": row[6], "claim": row[7], "task": row[9]}
    named = {name: value for name, value in columns.items() if name in told.columns}
    return row[3], row[4], row[5], row[8], {**facts_in(row[10]), **_said(named.items())}


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
            yield job_id, "; ".join(says)
