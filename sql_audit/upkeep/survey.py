"""Finds the differences between SQL and Redis that a loss left.

These are lost jobs, revived jobs, lost boxes and schedules, and forgotten ids and names.

    for job in survey(client, database, "mail").lost:
        print(job.job_id, job.was)

A *lost* job is live or lost in SQL, and Redis does not have it. A *revived* job has ended in SQL, but is live in Redis,
which has forgotten the end.

The order of the reads proves that a job is lost. First, Redis does not have the job. Then the mirror catches up with
Redis' outbox. Then the job is still live or lost in SQL. So the job's end can only be in a gap of the log or in a
quarantined entry. If that is possible, the job is *uncertain* (:mod:`sql_audit.mirror.possible_gaps`).
"""

# ruff: noqa: S608 - statements are joined from the machine's own words; values are bound

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, text

from rq_core.connections.client import Client
from rq_core.model.durable.boxes import header_in
from rq_core.model.events import OutboxId
from rq_core.model.keys import queue_keys
from rq_core.model.state_line import read_job
from rq_core.model.table.effects import JOB_ENDS
from rq_core.model.table.machine import State
from rq_core.model.unique_names import name_field, read_holder, read_stands
from rq_core.protocol.calls.audit import Restoration
from rq_core.protocol.reads.steps import read_lines
from sql_audit.mirror.field_types import INTEGER_MAX
from sql_audit.mirror.possible_gaps import Places
from sql_audit.mirror.projection import rebuild
from sql_audit.mirror.projection.fold import Folder
from sql_audit.proof.trusted_batches import TrustedBatches
from sql_audit.store import orphans
from sql_audit.store.connection.database import Database
from sql_audit.store.gaps import ended_by_baselines
from sql_audit.store.job_rows import JobRow
from sql_audit.store.schema.tables import GONE, LOST
from sql_audit.upkeep.lost import JobLog, LostJob, job_logs, judge_lost
from sql_audit.upkeep.lost_boxes import (
    box_restorations,
    boxes_in,
    entries_of_boxes,
    lost_boxes,
    trusted,
)
from sql_audit.upkeep.lost_pauses import LostPause, lost_pauses
from sql_audit.upkeep.lost_schedules import LostSchedule, lost_schedules, stored_entries
from sql_audit.upkeep.windows import forgotten, in_force, name_restoration, names_in_force

CHUNK: Final = 1_000
"""Maximum number of jobs that one call to Redis or one SQL statement reads."""

LIVE: Final = frozenset(str(state) for state in State)
_LIVE: Final = ", ".join(map(repr, sorted(LIVE)))

_KNOWN: Final = text(
    f"SELECT job_id FROM job WHERE queue = :queue AND state IN ('{LOST}', {_LIVE}) "
    "ORDER BY seq IS NULL, seq, enqueued_at_ms, job_id"
)
_STANDS: Final = text(
    "SELECT job_id, task, state, reason, last_epoch, last_seq FROM job "
    f"WHERE queue = :queue AND job_id IN :ids AND state IN ('{LOST}', '{GONE}', {_LIVE})"
).bindparams(bindparam("ids", expanding=True))
_TAKEN_SINCE: Final = text(
    "SELECT job_id FROM job WHERE queue = :queue AND unique_name = :name AND job_id <> :job "
    f"AND enqueued_at_ms >= :at AND enqueued_at_ms < :until AND state NOT IN ('{LOST}', '{GONE}') "
    "ORDER BY enqueued_at_ms LIMIT 1"
)
"""A query for a job that took a lost job's unique name while the lost job would still have held it. Jobs that are lost
or gone themselves do not count."""
_FINISHED: Final = text(
    "SELECT DISTINCT job_id FROM job_event_orphaned WHERE queue = :queue "
    f"AND type IN ({', '.join(repr(str(end)) for end in sorted(JOB_ENDS))}) ORDER BY job_id"
)


@dataclass(frozen=True, slots=True)
class RevivedJob:
    """A job that has ended in SQL but is live in Redis, which forgot the end. The job will run again."""

    job_id: str
    finished: str
    """The type of the event that ended the job."""
    number: str
    """The number of the outbox entry with that event."""
    state: str
    """The job's current state in Redis."""


@dataclass(slots=True)
class Survey:
    """The findings of :func:`survey` in one queue."""

    lost: list[LostJob] = field(default_factory=list)
    revived: list[RevivedJob] = field(default_factory=list)
    schedules: list[LostSchedule] = field(default_factory=list)
    pauses: list[LostPause] = field(default_factory=list)
    """Pauses and resumes by operators that Redis lost."""
    boxes: dict[str, bool] = field(default_factory=dict)
    """By id of a job in Redis that has lost saved steps or signals: True if its steps can be put back from the log."""
    why_lost: dict[str, str] = field(default_factory=dict)
    """The reasons why the saved steps of jobs in Redis must not be put back from the log, by job id."""
    forgotten: int = 0
    """Number of ids that Redis has forgotten, although it must remember them after their jobs have ended."""
    names: int = 0
    """Number of unique names that Redis has forgotten, although ended jobs hold them until a fixed time."""


class Differences(NamedTuple):
    """The differences between Redis and SQL that a restore can repair, as ids and records."""

    missing: list[str]
    """Ids of the jobs that Redis does not have, and that are live or lost in SQL. Jobs that are gone in SQL only
    because Redis' list of live jobs after a gap did not name them are included."""
    revived: dict[str, str]
    """By id: the state line in Redis of each job whose end is in SQL, but was forgotten by Redis."""
    windows: list[Restoration]
    """The records that make Redis remember forgotten ids of ended jobs again."""
    names: list[Restoration]
    """The records that give forgotten names to ended jobs again."""
    boxes: dict[str, str]
    """By id of a job that Redis has: the id of its box, if Redis has lost some of the job's steps or signals."""
    last: str
    """The number of the outbox entry of the last restore, from the queue's ``meta`` in Redis; "-" before the first
    restore."""


def survey(client: Client, database: Database, queue: str) -> Survey:
    """Compare the jobs of a queue in SQL with those in Redis, and return the differences.

    The mirror must have caught up. Otherwise jobs that were enqueued or ended after the last mirrored entry are wrongly
    reported. Raise the errors of Redis and SQL if they do not answer.
    """
    gap = find_differences(client, database, queue)
    found = Survey()
    for lost, _ in lost_jobs(database, queue, gap.missing):
        found.lost.append(lost)
    for revived, _ in revived_jobs(database, queue, gap.revived):
        found.revived.append(revived)
    found.schedules = lost_schedules(database, queue, stored_entries(client, queue)).found
    found.pauses = lost_pauses(client, database, queue)
    for job_id, box in lost_boxes(database, queue, gap.boxes):
        found.boxes[job_id] = box.records is not None
        if box.why_lost is not None:
            found.why_lost[job_id] = box.why_lost
    found.forgotten, found.names = len(gap.windows), len(gap.names)
    return found


def find_differences(client: Client, database: Database, queue: str) -> Differences:
    of_queue = {"queue": queue}
    with database.readers.connect() as connection:
        known = [
            *connection.execute(_KNOWN, of_queue).scalars(),
            *ended_by_baselines(connection, queue),
        ]
        finished = connection.execute(_FINISHED, of_queue).scalars().all()
    calls = client.calls
    meta = queue_keys(queue, calls.delivery.prefix)("meta")
    (last,) = client.run(calls.delivery.ask([["HGET", meta, "restored"]], queue))
    now_ms = _now_ms(client)
    windows = _windows(client, database, queue, now_ms)
    names = _names(client, database, queue, now_ms)
    missing: list[str] = []
    lives: dict[str, str] = {}
    for job_id, line in _lines(client, queue, known):
        if line is None:
            missing.append(job_id)
        elif " life=" in line:
            lives[job_id] = read_job(job_id, line).fields["life"]
    revived = {job_id: line for job_id, line in _lines(client, queue, finished) if line is not None}
    boxes = _without_boxes(client, queue, lives)
    return Differences(missing, revived, windows, names, boxes, last or "-")


def _without_boxes(client: Client, queue: str, lives: dict[str, str]) -> dict[str, str]:
    """Return, by job id, the boxes in ``lives`` that are incomplete in Redis, which has lost a part: the header, a step
    or a signal.
    """
    calls, found = client.calls, dict[str, str]()
    boxes = queue_keys(queue, calls.delivery.prefix)("boxes")
    for begin in range(0, len(lives), CHUNK):
        chunk = dict(list(lives.items())[begin : begin + CHUNK])
        (headers,) = client.run(calls.delivery.ask([["HMGET", boxes, *chunk.values()]], queue))
        for (job_id, life), header in zip(chunk.items(), headers, strict=True):
            said = header_in(header)
            names = [f"{life}|{number}" for number in range(1, 1 + (said.entries if said else 0))]
            names += [f"{life}>{number}" for number in range(1, 1 + (said.signals if said else 0))]
            sizes = client.run(calls.delivery.ask([["HSTRLEN", boxes, n] for n in names], queue))
            if said is None or 0 in sizes:
                found[job_id] = life
    return found


def _now_ms(client: Client) -> int:
    """Return the time of Redis' clock (Unix ms)."""
    ((seconds, micros),) = client.run(client.calls.delivery.ask([["TIME"]]))
    return int(seconds) * 1000 + int(micros) // 1000


def _windows(client: Client, database: Database, queue: str, now_ms: int) -> list[Restoration]:
    """Return a record for each id of an ended job that Redis should remember but has forgotten. Ids that a live job
    has are left out.
    """
    calls = client.calls
    keys = queue_keys(queue, calls.delivery.prefix)
    with database.readers.connect() as connection:
        told = list(in_force(connection, queue, now_ms))
    found: list[Restoration] = []
    for begin in range(0, len(told), CHUNK):
        chunk = told[begin : begin + CHUNK]
        asked: list[list[Any]] = [["HMGET", keys("results"), *(record.id for record in chunk)]]
        (known,) = client.run(calls.delivery.ask(asked, queue))
        found += [record for record, line in zip(chunk, known, strict=True) if line is None]
    alive = dict(_lines(client, queue, [record.id for record in found]))
    return [record for record in found if alive[record.id] is None]


def _names(client: Client, database: Database, queue: str, now_ms: int) -> list[Restoration]:
    """Return a record for each name that an ended job should still hold, if no job holds the name in Redis."""
    keys = queue_keys(queue, client.calls.delivery.prefix)
    with database.readers.connect() as connection:
        told = list(names_in_force(connection, queue, now_ms).items())
    found: list[Restoration] = []
    for begin in range(0, len(told), CHUNK):
        chunk = told[begin : begin + CHUNK]
        asked: list[list[Any]] = [
            ["HMGET", keys("slots"), *(name_field(name) for name, _ in chunk)]
        ]
        (held,) = client.run(client.calls.delivery.ask(asked, queue))
        for (_, record), value in zip(chunk, held, strict=True):
            until_ms = None if value is None else read_holder(value).until_ms
            if value is None or (until_ms is not None and until_ms <= now_ms):
                found.append(record)
    return found


def _lines(client: Client, queue: str, ids: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each job's id and its state line in Redis; None if Redis does not have the job."""
    calls = client.calls
    keys = queue_keys(queue, calls.delivery.prefix)
    for begin in range(0, len(ids), CHUNK):
        chunk = ids[begin : begin + CHUNK]
        lines = client.run(read_lines(calls.delivery, keys, chunk))
        yield from zip(chunk, lines, strict=True)


def lost_jobs(
    database: Database, queue: str, ids: Sequence[str]
) -> Iterator[tuple[LostJob, list[Restoration]]]:
    """Yield the jobs among ``ids``, in this order, that are still lost, each with the records that restore it.

    Such a job is live or lost in SQL, or gone only because Redis' list of live jobs after a gap did not name it. For a
    job that has ended, the records restore only its id and its name, if Redis must keep these after the job's end.
    """
    with database.readers.connect() as connection:
        orphaned = orphans.ranges(connection, queue)
        batches = TrustedBatches(database, connection, queue, None)
        for begin in range(0, len(ids), CHUNK):
            chunk = ids[begin : begin + CHUNK]
            yield from _lost_chunk(connection, queue, chunk, orphaned, batches)


def _lost_chunk(
    connection: Connection,
    queue: str,
    ids: Sequence[str],
    orphaned: Sequence[orphans.Range],
    batches: TrustedBatches,
) -> Iterator[tuple[LostJob, list[Restoration]]]:
    of_jobs = {"queue": queue, "ids": list(ids)}
    stands = {row.job_id: row for row in connection.execute(_STANDS, of_jobs)}
    rows = rebuild.events_of(connection, queue, list(stands))
    told = job_logs(rows, orphaned)
    boxes, entries = boxes_in(rows, orphaned), entries_of_boxes(rows)
    places = Places(connection, queue)
    folds = Folder(queue, ()), Folder(queue, ())
    for row in rows:
        intake = rebuild.intake_of(row)
        if intake is not None:
            folds[1].add(intake)
            if not orphans.in_any(intake.id, orphaned):
                folds[0].add(intake)
    for job_id in ids:
        if job_id not in stands:
            continue
        row = stands[job_id]
        uncertain = places.of(job_id, OutboxId(row.last_epoch, row.last_seq))
        if row.state == GONE and uncertain is None:
            continue  # A complete baseline has shown meanwhile that the job is gone.
        job = folds[0].touched.get(job_id) or folds[1].touched[job_id]
        was = row.state if row.state in LIVE else row.reason
        lost, record = judge_lost(job, told[job_id], was, uncertain, missing=row.state in LIVE)
        if record is not None and (later := _taken_since(connection, queue, job)) is not None:
            lost, record = replace(lost, over=f"job {later} has taken its name since"), None
        window = (
            name_restoration(job_id, job.unique_name, job.name_stands, 0) if lost.over else None
        )
        box = box_restorations(boxes, job_id, job.life if record is not None else None)
        box = trusted(box, batches, entries.get(job_id, ()))
        lost = replace(
            lost,
            steps_lost=box.records is None,
            signals_lost=box.signals_lost,
            why_lost=box.why_lost,
        )
        rest = (each for each in (record, window) if each is not None)
        yield lost, [*(box.records or []), *rest]


def _taken_since(connection: Connection, queue: str, job: JobRow) -> str | None:
    """Return the id of a surviving job that took a lost job's name while the lost job would still have held the name.

    Return None if no job took the name, or if the lost job did not hold the name any more.
    """
    if job.unique_name is None:
        return None
    stands = read_stands(job.name_stands)
    if stands.how == "claim" and job.claims:
        return None
    of_name = {
        "queue": queue,
        "name": job.unique_name,
        "job": job.job_id,
        "at": job.enqueued_at_ms,
        "until": stands.at_ms if stands.how == "until" else INTEGER_MAX,
    }
    found: str | None = connection.execute(_TAKEN_SINCE, of_name).scalar()
    return found


def revived_jobs(
    database: Database, queue: str, lines: dict[str, str]
) -> Iterator[tuple[RevivedJob, Restoration | None]]:
    """Yield the jobs whose end Redis forgot. A job is left out if it began again after this end. ``lines`` are the
    jobs' state lines, by job id.

    With each job, yield the record that makes Redis remember the job's id after the job is removed; None if the id
    becomes free.
    """
    ids = list(lines)
    with database.readers.connect() as connection:
        orphaned = orphans.ranges(connection, queue)
        for begin in range(0, len(ids), CHUNK):
            chunk = ids[begin : begin + CHUNK]
            told = job_logs(rebuild.events_of(connection, queue, chunk), orphaned)
            for job_id in chunk:
                end = told[job_id].end if job_id in told else None
                if end is not None:
                    yield _revived_job(lines[job_id], told[job_id], job_id, *end)


def _revived_job(
    line: str, told: JobLog, job_id: str, event: str, at: OutboxId
) -> tuple[RevivedJob, Restoration | None]:
    fields = read_job(job_id, line).fields
    once, fence = fields.get("once"), told.fence
    record = forgotten(
        job_id, event, told.end_ms, None if once is None else int(once), fields.get("call"),
        claimed=fence is not None, fence=fence,
    )  # fmt: skip
    return RevivedJob(job_id, event, str(at), line.partition(" ")[0]), record
