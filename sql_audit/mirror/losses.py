"""What Redis forgot: where its history left the one that SQL has, and what follows from that.

A queue's history may go back: to an old snapshot, to a log without its tail, to a replica that lagged.
It then goes on with a new epoch, and the events that SQL has beyond the last one that Redis still knew
are *orphaned*: they stay in ``job_event`` and are no part of the history that went on. Where that
point is, :func:`find` sees by comparing what Redis still has with what SQL has, entry by entry, back
from the new epoch's beginning.

An epoch goes on from the last entry that Redis still knew, so the epochs are a tree, and what
survives is the way back from the last of them. The view ``orphaned_range`` walks it: what was orphaned
may come back to life, when Redis remembers it again and forgets what had replaced it.

Everything here happens in the mirror's transaction, under the cursor's lock.
"""

# ruff: noqa: S608 - statements are joined from the schema's own names; values are bound

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from rq_core.model.machine import Event, State
from rq_core.model.reasons import RESTATED_BY
from sql_audit.mirror.fold import Folder
from sql_audit.mirror.intake import Intake, Quarantined, pack, take
from sql_audit.mirror.refold import refold
from sql_audit.mirror.source import OutboxSource, RawFields
from sql_audit.store import minutes
from sql_audit.store.database import Database
from sql_audit.store.orphans import ranges
from sql_audit.store.rows import EventRow
from sql_audit.store.tables import EVENT_COLUMNS, GONE, LOST, QUARANTINED, mirror_loss

logger = logging.getLogger("rq_core.audit")

PAGE: Final = 200
"""Entries of Redis that are compared at once."""
_COLUMNS: Final = ", ".join(EVENT_COLUMNS)
_LIVE: Final = ", ".join(repr(str(state)) for state in State)

_EVENTS_OF_ENTRIES: Final = text(
    f"SELECT {_COLUMNS} FROM job_event WHERE queue = :queue AND (epoch, seq) >= (:epoch, :seq) "
    "AND (epoch, seq) <= (:to_epoch, :to_seq) ORDER BY epoch, seq, ordinal"
)
_FIRST: Final = text(
    "SELECT epoch, seq, type, detail FROM job_event WHERE queue = :queue ORDER BY epoch, seq LIMIT 1"
)
_COUNT: Final = text(
    "SELECT COUNT(*) FROM job_event WHERE queue = :queue AND (epoch, seq) > (:epoch, :seq) "
    "AND (epoch, seq) <= (:to_epoch, :to_seq)"
)
_JOBS_CONCERNED: Final = text(
    "SELECT DISTINCT job_id FROM job_event WHERE queue = :queue AND (epoch, seq) > (:epoch, :seq) "
    "AND (epoch, seq) <= (:to_epoch, :to_seq) AND job_id IS NOT NULL"
)
_BASELINE: Final = text(
    "SELECT MAX(epoch) FROM mirror_epoch WHERE queue = :queue AND kind = 'started' AND "
    f"epoch <= :epoch AND reason IN ({', '.join(repr(str(reason)) for reason in RESTATED_BY)})"
)
_EARLIEST: Final = text(
    "SELECT MIN(at_ms) FROM job_event WHERE queue = :queue AND (epoch, seq) > (:epoch, :seq) "
    "AND (epoch, seq) <= (:to_epoch, :to_seq)"
)
_INSERT_LOSS: Final = mirror_loss.insert()

# In the order in which they must be executed. A job is concerned if nothing was told of it since.
_CONCERNED: Final = f"queue = :queue AND state IN ({_LIVE}) AND last_epoch < :epoch"
_END_CLAIMS: Final = text(
    f"UPDATE job_attempt SET outcome = '{LOST}', ended_at_ms = :at_ms WHERE queue = :queue AND "
    "outcome IS NULL AND (job_id, fence) IN "
    f"(SELECT job_id, fence FROM job WHERE {_CONCERNED} AND fence IS NOT NULL)"
)
_END_JOBS: Final = text(
    "UPDATE job SET reason = state, state = :state, fence = NULL, worker = NULL, due_ms = NULL "
    f"WHERE {_CONCERNED}"
)


@dataclass(frozen=True, slots=True)
class Fork:
    """Where Redis' history left the one that SQL has."""

    at: OutboxId
    """The entry with which Redis' history went on: an epoch's beginning."""
    survivor: OutboxId | None
    """The last entry that both have; None: Redis remembered nothing."""
    passed: int = 0
    """Entries that Redis has under numbers that SQL had passed. They cannot be mirrored."""
    changed: OutboxId | None = None
    """The first number under which both have an entry, and not the same."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A row of mirror_loss, as :func:`apply` made it."""

    kind: str
    events: int
    jobs: int


def find(
    connection: Connection, source: OutboxSource, queue: str, beginning: Intake, cursor: OutboxId
) -> tuple[Fork, list[Quarantined]]:
    """Where the epoch that begins with ``beginning`` left what SQL has up to ``cursor``.

    Also returns the entries before it that cannot be mirrored, oldest first.
    """
    at = beginning.id
    earlier = _before_the_log(connection, queue)
    told = told_last(beginning)
    kept: list[Quarantined] = []
    changed: OutboxId | None = None
    whole = True
    """Whether it is known what came before the last entry that was looked at."""
    before = at
    while True:
        page = source.read_outbox_back(queue, str(before), PAGE)
        entries = [(OutboxId.parse(entry_id), raw) for entry_id, raw in page]
        ours = _rows_of(connection, queue, entries)
        for entry_id, raw in entries:
            rows = ours.get(entry_id, [])
            known = earlier is not None and earlier.epoch == entry_id.epoch and entry_id <= earlier
            if known or _same(entry_id, raw, rows):
                return Fork(at, entry_id, len(kept), changed), kept[::-1]
            if rows:
                changed = entry_id
            reason = (
                "SQL has another entry under its number" if rows else "SQL had passed its number"
            )
            kept.append(Quarantined(entry_id, None, "conflict", reason, pack(raw)))
            whole = raw.get("type") == Event.EPOCH_STARTED
            if whole:
                told = told_last(take(entry_id, raw))
        if len(page) < PAGE:
            break
        before = entries[-1][0]
    # Redis has nothing left that SQL has. Its earliest epoch says what it went on from.
    survivor = told if whole else cursor
    return Fork(at, survivor, len(kept), changed), kept[::-1]


def _before_the_log(connection: Connection, queue: str) -> OutboxId | None:
    """The last entry that Redis had before the first that SQL has, as that tells it."""
    row = connection.execute(_FIRST, {"queue": queue}).one_or_none()
    if row is None:
        return None
    if row.type != Event.EPOCH_STARTED:
        return OutboxId(row.epoch, row.seq - 1)
    facts = json.loads(row.detail or "{}")
    return told_last(Intake(OutboxId(row.epoch, row.seq), None, None, "", None, 0, data=facts))


def told_last(beginning: Intake) -> OutboxId | None:
    """The last entry before, as an epoch's beginning tells it; None if Redis knew of none."""
    last = beginning.data.get("last")
    try:
        told = OutboxId.parse(last) if isinstance(last, str) else None
    except ValueError:
        return None
    return told if told is None or max(told) < 2**63 else None


def _rows_of(
    connection: Connection, queue: str, entries: Sequence[tuple[OutboxId, RawFields]]
) -> dict[OutboxId, list[EventRow]]:
    """What SQL has of entries, newest first."""
    found: dict[OutboxId, list[EventRow]] = {}
    if not entries:
        return found
    first, last = entries[-1][0], entries[0][0]
    bounds = _bounds(queue, first, last)
    for row in connection.execute(_EVENTS_OF_ENTRIES, bounds):
        found.setdefault(OutboxId(row.epoch, row.seq), []).append(tuple(row))
    return found


def _bounds(queue: str, first: OutboxId, last: OutboxId) -> dict[str, Any]:
    return {
        "queue": queue, "epoch": first.epoch, "seq": first.seq,
        "to_epoch": last.epoch, "to_seq": last.seq,
    }  # fmt: skip


_OF_ENTRY: Final = tuple(
    EVENT_COLUMNS.index(name) for name in ("ordinal", "type", "at_ms", "job_id", "worker", "detail")
)
"""What the entry alone says; the task, and the claim that it ends, come from the job."""
_TYPE: Final = EVENT_COLUMNS.index("type")
_DETAIL: Final = EVENT_COLUMNS.index("detail")


def _same(entry_id: OutboxId, raw: RawFields, rows: Sequence[EventRow]) -> bool:
    """Whether SQL's rows are what this entry says."""
    if not rows:
        return False
    if len(rows) == 1 and rows[0][_TYPE] == QUARANTINED:
        sha = hashlib.sha256(pack(raw)).hexdigest()
        return sha in (rows[0][_DETAIL] or "")
    folder = Folder(str(rows[0][0]), ())
    folder.add(take(entry_id, raw))
    said, ours = (
        [tuple(row[place] for place in _OF_ENTRY) for row in each] for each in (folder.events, rows)
    )
    return said == ours


def log(queue: str, fork: Fork, loss: Loss) -> None:
    """Tell the operator what Redis forgot."""
    if loss.kind == "forgotten":
        logger.error("queue %s: Redis remembers nothing: %d live jobs are lost", queue, loss.jobs)
        return
    logger.error(
        "queue %s: Redis forgot what came after %s: %d events of %d jobs are orphaned",
        queue, fork.survivor, loss.events, loss.jobs,
    )  # fmt: skip
    if fork.passed:
        logger.error(
            "queue %s: %d entries go to quarantine, since SQL had passed their numbers",
            queue, fork.passed,
        )  # fmt: skip


# What follows.


def apply(
    connection: Connection,
    database: Database,
    queue: str,
    fork: Fork,
    upto: OutboxId,
    at_ms: int,
) -> Loss | None:
    """Note what Redis forgot of what SQL has up to ``upto``, and take it out of the projection.

    None if it forgot nothing that SQL has, and had nothing that SQL cannot mirror.
    """
    row = {
        "queue": queue, "kind": "orphaned", "epoch": fork.at.epoch, "at_ms": at_ms,
        "after_epoch": None, "after_seq": None, "upto_epoch": upto.epoch, "upto_seq": upto.seq,
        "events": 0, "jobs": 0, "passed": fork.passed,
    }  # fmt: skip
    if fork.survivor is None:
        # The projection's fold has no event for this: the beginning of the epoch says it of all.
        count = end_jobs(connection, queue, LOST, fork.at.epoch, at_ms)
        connection.execute(_INSERT_LOSS, row | {"kind": "forgotten", "jobs": count})
        return Loss("forgotten", 0, count)
    survivor = min(fork.survivor, upto)
    if survivor == upto and not fork.passed:
        return None
    before = ranges(connection, queue)
    bounds = _bounds(queue, survivor, upto)
    events: int = connection.execute(_COUNT, bounds).scalar_one()
    concerned = connection.execute(_JOBS_CONCERNED, bounds).scalars().all()
    connection.execute(
        _INSERT_LOSS,
        row
        | {
            "after_epoch": survivor.epoch,
            "after_seq": survivor.seq,
            "events": events,
            "jobs": len(concerned),
        },
    )
    after = ranges(connection, queue)
    # What was orphaned and is not any more concerns jobs, too.
    revived = [each.after for each in before if each not in after and each.after < survivor]
    if revived:
        bounds = _bounds(queue, min(revived), upto)
        concerned = connection.execute(_JOBS_CONCERNED, bounds).scalars().all()
    refold(connection, database, queue, concerned, after)
    earliest = connection.execute(_EARLIEST, bounds).scalar_one()
    if earliest is not None:
        minutes.count_again(connection, queue, earliest)
    return Loss("orphaned", events, len(concerned))


def began(connection: Connection, queue: str, upto: OutboxId) -> int | None:
    """The epoch with which the baseline began that was complete at ``upto``; None if nobody saw."""
    last = connection.execute(_BASELINE, {"queue": queue, "epoch": upto.epoch}).scalar_one()
    return None if last is None else int(last)


def restated(connection: Connection, queue: str, began: int, upto: OutboxId, at_ms: int) -> Loss:
    """The baseline that began with epoch ``began`` is complete: what it did not name is gone."""
    count = end_jobs(connection, queue, GONE, began, at_ms)
    connection.execute(
        _INSERT_LOSS,
        {
            "queue": queue, "kind": "restated", "epoch": began, "at_ms": at_ms,
            "after_epoch": None, "after_seq": None, "upto_epoch": upto.epoch,
            "upto_seq": upto.seq, "events": 0, "jobs": count, "passed": 0,
        },
    )  # fmt: skip
    return Loss("restated", 0, count)


def end_jobs(connection: Connection, queue: str, state: str, epoch: int, at_ms: int) -> int:
    """Put every live job of which nothing was told since ``epoch`` began into a state. Returns how
    many."""
    values = {"queue": queue, "state": state, "epoch": epoch, "at_ms": at_ms}
    if connection.execute(_END_CLAIMS, values).rowcount:
        minutes.count_again(connection, queue, at_ms)
    return connection.execute(_END_JOBS, values).rowcount


# Folding anew.
