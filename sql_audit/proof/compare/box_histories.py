"""Computes from the events in SQL which steps and signals each durable job should have in Redis, for ``rq-core
doctor``. Redis keeps them in the job's *box*.

SQL may lack events of a job up to some entry. Then only later events are applied to the job's box. If the job began
before that entry, the box may have steps and signals without an event; the doctor reports them as unknown. If Redis
forgot events about a box, a restore may have put back the steps and signals of these events; the doctor accepts such
steps and signals, too.
"""

# ruff: noqa: S608 - a statement is joined from the schema's own names; values are bound

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import Connection, bindparam, text

from rq_core.doctor.log import FoldedLog
from rq_core.model.durable.box_log import BOX_EVENTS, LoggedBox
from rq_core.model.durable.boxes import header_in
from rq_core.model.events import OutboxId, Undecodable, decode
from rq_core.model.state_line import read_job
from rq_core.model.table.machine import Event
from rq_core.model.table.reasons import Began
from sql_audit.mirror.possible_gaps import Places
from sql_audit.mirror.projection.rebuild import intake_of
from sql_audit.store import orphans
from sql_audit.store.schema.tables import EVENT_COLUMNS
from sql_audit.store.storable_text import clean

JOBS_CHUNK: Final = 250
"""Maximum number of jobs whose events one statement reads."""
MEMBERS_CHUNK: Final = 10_000
"""Number of steps and signals of some jobs, in total, from which on these jobs are read by a statement of their own."""
_OF_JOBS: Final = text(
    # Without the cast, SQLite would read all events of the queue (see rebuild.py).
    f"SELECT {', '.join(EVENT_COLUMNS)} FROM job_event WHERE CAST(queue AS TEXT) = :queue AND job_id IN :ids "
    "AND type IN :types AND (epoch < :epoch OR epoch = :epoch AND seq <= :seq) ORDER BY epoch, seq, ordinal"
).bindparams(bindparam("ids", expanding=True), bindparam("types", expanding=True))
TYPES: Final = [*map(str, sorted({*BOX_EVENTS, Event.ENQUEUED}))]
_BREAKS: Final = text(
    "SELECT epoch, seq FROM mirror_epoch WHERE queue = :queue AND (kind IN ('gap', 'joined') "
    f"OR kind = 'started' AND reason = '{Began.OUTBOX_LOST}')"
)
_NEVER: Final = OutboxId(0, -1)
_NO_BEGINNING: Final = "the log does not have the job's beginning"
_OF_ANOTHER_BOX: Final = "the log has events about another box of the job"
_SIGNALS: Final = frozenset({Event.SIGNALLED, Event.SIGNAL_LOST})


def tell_boxes(
    connection: Connection,
    queue: str,
    redis: Mapping[str, Any],
    log: FoldedLog,
    standing: Mapping[str, str],
    position: OutboxId,
) -> None:
    """Compute each durable job's box (its steps and signals) from the events in SQL and in the outbox, and store the
    boxes in ``log``, the history that ``rq-core doctor`` compares with Redis.

    Up to the entry ``position``, the events in SQL are used; after this entry, the events in the outbox. ``standing``
    has the jobs' states in Redis, by job id. For a queue without durable jobs, SQL is not read.
    """
    lives = _lives(standing, log)
    if not lives:
        return
    upto = min(position, max(OutboxId.parse(at) for at, _ in redis["outbox"]))
    log.boxes = {}
    told = _Boxes(connection, queue, upto)
    for chunk in chunks_of(lives, redis["boxes"]):
        log.boxes |= told.of_jobs(chunk)
    for at, raw in redis["outbox"]:
        if OutboxId.parse(at) > upto:
            with suppress(Undecodable, ValueError, TypeError):
                entry = decode(at, raw)
                for event in entry.jobs if entry.event in BOX_EVENTS else ():
                    box = log.boxes.setdefault(event.fields["life"], LoggedBox())
                    box.add(entry.event, entry.at_ms, event.fields)
    for job_id in log.fresh & lives.keys():
        # The job began after SQL's last entry.
        fresh = log.boxes.get(lives[job_id])
        if fresh is not None and fresh.unknown_since == _NO_BEGINNING:
            fresh.is_whole, fresh.unknown_since = True, None


def _lives(standing: Mapping[str, str], log: FoldedLog) -> dict[str, str]:
    """Return the id of each durable job's box, by job id. (A box has the job's steps and signals.)

    If the log and the job's state in Redis name different boxes, the log is used: Redis may name another job's box.
    """
    found = {i: record.life for i, record in log.records.items() if record.state and record.life}
    for job_id, line in standing.items():
        if job_id not in found and " life=" in line:
            with suppress(ValueError):
                found[job_id] = read_job(job_id, line).fields.get("life")
    return {i: life for i, life in found.items() if life is not None and clean(i) == i}


def chunks_of(lives: Mapping[str, str], boxes: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Divide the jobs into chunks, so that one SQL statement can read the events of each chunk.

    ``lives`` has the ids of the jobs' boxes (their steps and signals), by job id. ``boxes`` are the boxes in Redis.
    """
    chunk: dict[str, str] = {}
    members = 0
    for job_id, life in lives.items():
        header = header_in(boxes.get(life))
        chunk[job_id] = life
        members += header.entries + header.signals if header else 1
        if len(chunk) >= JOBS_CHUNK or members >= MEMBERS_CHUNK:
            yield chunk
            chunk, members = {}, 0
    if chunk:
        yield chunk


def _is_renamed(others: Collection[Event], *, has_events: bool) -> bool:
    """Return whether Redis may have a job's box (its steps and signals) under another id than the log says. A repair
    that believed the log would then delete the box's contents.

    ``others`` are the types of the job's events about other boxes. ``has_events`` is True if the log has events about
    the box itself. A worker may give a box another id if it has only signals; the log then has the signals again.
    """
    return not _SIGNALS.issuperset(others) or (bool(others) and not has_events)


def _unknown(beginning: OutboxId | None, floor: OutboxId) -> str | None:
    """Return the reason why the log may lack events of a job that began with the entry ``beginning``; None if it has
    all.

    ``floor`` is the entry from which on the log has every event of the job.
    """
    if beginning is None:
        return _NO_BEGINNING
    return f"the log may lack events of the job before entry {floor}" if beginning < floor else None


class _Boxes:
    """Computes the boxes (the steps and signals) of a queue's durable jobs from the events in SQL, up to the entry
    ``upto``.
    """

    def __init__(self, connection: Connection, queue: str, upto: OutboxId) -> None:
        of_queue = {"queue": queue}
        self._connection = connection
        self._asked = {
            **of_queue, **upto._asdict(), "types": TYPES,
        }  # fmt: skip
        self._orphaned = orphans.ranges(connection, queue)
        self._places = Places(connection, queue)
        breaks = [OutboxId(*row) for row in connection.execute(_BREAKS, of_queue)]
        breaks += [OutboxId(epoch, 0) for epoch in orphans.passed(connection, queue)]
        self._last_break = max(breaks, default=_NEVER)

    def of_jobs(self, lives: Mapping[str, str]) -> dict[str, LoggedBox]:
        """Compute the boxes (the steps and signals) of some jobs, and return them by the box's id.

        ``lives`` has the id of each job's box, by job id.
        """
        boxes = {life: LoggedBox() for life in lives.values()}
        floors = {job_id: self._floor(job_id) for job_id in lives}
        began: dict[str, OutboxId] = {}
        kept: defaultdict[str, list[tuple[str, int, Mapping[str, Any]]]] = defaultdict(list)
        others: defaultdict[str, set[Event]] = defaultdict(set)
        for row in self._connection.execute(_OF_JOBS, self._asked | {"ids": [*lives]}):
            intake = intake_of(tuple(row))
            if intake is None or intake.event is None:
                continue
            facts: dict[str, Any] = {name: column[0] for name, column in intake.columns.items()}
            job_id, is_orphaned = str(facts["id"]), orphans.in_any(intake.id, self._orphaned)
            if intake.event is Event.ENQUEUED:
                if not is_orphaned:
                    # Earlier events are about another job of the id.
                    began[job_id], boxes[lives[job_id]] = intake.id, LoggedBox()
                    kept.pop(lives[job_id], None)
                    others.pop(job_id, None)
                continue
            life, at_ms = facts["life"], intake.at_ms or 0
            if is_orphaned:
                if life == lives[job_id]:
                    boxes[life].allow(intake.event, at_ms, facts)
            elif life != lives[job_id]:
                others[job_id].add(intake.event)
            else:
                kept[life].append((intake.event, at_ms, facts))
                if intake.id >= floors[job_id]:
                    boxes[life].add(intake.event, at_ms, facts)
        for job_id, life in lives.items():
            box = boxes[life]
            if box.also:
                for event in kept[life]:
                    box.allow(*event)
            is_renamed = _is_renamed(others[job_id], has_events=bool(kept[life]))
            box.unknown_since = (
                _OF_ANOTHER_BOX if is_renamed else _unknown(began.get(job_id), floors[job_id])
            )
            box.is_whole = box.unknown_since is None
        return boxes

    def _floor(self, job_id: str) -> OutboxId:
        """Return the outbox entry from which on SQL has every event of a job."""
        unread, after = self._places.unread(job_id, _NEVER), self._last_break
        while unread is not None:
            after = max(after, OutboxId(unread.epoch, unread.seq + 1))
            unread = self._places.unread(job_id, unread)
        return after
