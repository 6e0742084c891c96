"""Reads the gaps of a queue's log: the places where SQL lacks events.

If a job has no event after a gap, it may have ended in the gap. Only the next complete baseline, which lists all live
jobs, shows whether it did.
"""

# ruff: noqa: S608 - statements are joined from the model's own words; values are bound

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from rq_core.model.table.reasons import RESTATED_BY, Began
from sql_audit.store.schema.tables import GONE

_GAPS: Final = text(
    # If Redis lost its outbox, the jobs have the changes of the lost entries, so this is a gap, too.
    "SELECT epoch, seq, kind FROM mirror_epoch WHERE queue = :queue AND "
    f"(kind = 'gap' OR kind = 'started' AND reason = '{Began.OUTBOX_LOST}') ORDER BY epoch, seq"
)
_RESTATED: Final = text(
    "SELECT epoch FROM mirror_loss WHERE queue = :queue AND kind = 'restated' ORDER BY epoch"
)
_BEGUN: Final = text(
    "SELECT MAX(epoch) FROM mirror_epoch WHERE queue = :queue AND kind = 'started' "
    f"AND reason IN ({', '.join(repr(str(reason)) for reason in RESTATED_BY)})"
)


class Gap(NamedTuple):
    """A place in the log where outbox entries are missing, or may be missing."""

    at: OutboxId
    """The first entry after the gap."""
    numbered: bool
    """True if numbers of entries are missing. If false, Redis lost its outbox, and it is unknown whether entries are
    missing."""


def gaps(connection: Connection, queue: str) -> list[Gap]:
    """Return the gaps of a queue's log, oldest first."""
    return [
        Gap(OutboxId(row.epoch, row.seq), row.kind == "gap")
        for row in connection.execute(_GAPS, {"queue": queue})
    ]


def restated(connection: Connection, queue: str) -> list[int]:
    """Return the epochs of a queue that began with a complete baseline, oldest first. A baseline lists all live jobs in
    Redis.
    """
    return list(connection.execute(_RESTATED, {"queue": queue}).scalars())


def open_gap(connection: Connection, queue: str) -> Gap | None:
    """Return the last gap in a queue's log. Return None if there is no gap, or if a complete baseline after it lists
    all live jobs.
    """
    found = gaps(connection, queue)
    if not found:
        return None
    known = restated(connection, queue)
    return None if known and OutboxId(known[-1], 0) >= found[-1].at else found[-1]


def unasked_gap(connection: Connection, queue: str) -> Gap | None:
    """Return the last gap in a queue's log. Return None if there is no gap, or if a baseline (a list of all live jobs)
    has begun after it.
    """
    gap = open_gap(connection, queue)
    if gap is None:
        return None
    begun = connection.execute(_BEGUN, {"queue": queue}).scalar_one()
    return None if begun is not None and OutboxId(begun, 0) >= gap.at else gap


def first_gap_after(found: list[Gap], last: OutboxId) -> Gap | None:
    """Return the first gap after the entry ``last``, or None."""
    return next((gap for gap in found if gap.at > last), None)


_GONE: Final = text(
    "SELECT job_id FROM job WHERE queue = :queue AND state = :gone AND last_epoch >= :known "
    "AND (last_epoch, last_seq) < (:epoch, :seq) "
    "ORDER BY seq IS NULL, seq, enqueued_at_ms, job_id"
)


def ended_by_baselines(connection: Connection, queue: str) -> list[str]:
    """Return the ids of jobs that are gone in SQL only because a baseline, Redis' list of all live jobs, did not name
    them.

    The baseline came after a gap in the log. The log does not show whether these jobs ran in the gap.
    """
    known = restated(connection, queue)
    found: dict[str, None] = {}
    for gap in gaps(connection, queue):
        if not gap.numbered:
            continue
        before = [epoch for epoch in known if epoch <= gap.at.epoch and (epoch, 0) < gap.at]
        values = {
            "queue": queue,
            "gone": GONE,
            "known": before[-1] if before else 0,
            "epoch": gap.at.epoch,
            "seq": gap.at.seq,
        }
        found.update(dict.fromkeys(connection.execute(_GONE, values).scalars()))
    return list(found)
