"""The gaps of a queue's log: SQL lacks the events in a gap.

A job without an event since then may have ended in the gap. Only the baseline that Redis sends after it shows again
which jobs are alive.
"""

# ruff: noqa: S608 - statements are joined from the model's own words; values are bound

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from rq_core.model.table.reasons import RESTATED_BY, Began
from sql_audit.store.schema.tables import GONE

_GAPS: Final = text(
    # Where Redis lost its log, it has what the lost entries made of the jobs: that is a gap, too.
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
    """A place where entries are missing."""

    at: OutboxId
    """The entry behind it."""
    numbered: bool
    """Whether numbers are missing; else Redis lost its log, and whether anything was in it is not known."""


def gaps(connection: Connection, queue: str) -> list[Gap]:
    """The gaps of a queue's log, oldest first."""
    return [
        Gap(OutboxId(row.epoch, row.seq), row.kind == "gap")
        for row in connection.execute(_GAPS, {"queue": queue})
    ]


def restated(connection: Connection, queue: str) -> list[int]:
    """The epochs that began with a baseline which is complete in SQL, oldest first."""
    return list(connection.execute(_RESTATED, {"queue": queue}).scalars())


def open_gap(connection: Connection, queue: str) -> Gap | None:
    """The last gap, if no baseline behind it is complete in SQL."""
    found = gaps(connection, queue)
    if not found:
        return None
    known = restated(connection, queue)
    return None if known and OutboxId(known[-1], 0) >= found[-1].at else found[-1]


def unasked_gap(connection: Connection, queue: str) -> Gap | None:
    """The last gap, if no epoch with a baseline has begun since, as far as SQL knows."""
    gap = open_gap(connection, queue)
    if gap is None:
        return None
    begun = connection.execute(_BEGUN, {"queue": queue}).scalar_one()
    return None if begun is not None and OutboxId(begun, 0) >= gap.at else gap


def first_gap_after(found: list[Gap], last: OutboxId) -> Gap | None:
    """The first gap behind a job's last event."""
    return next((gap for gap in found if gap.at > last), None)


_GONE: Final = text(
    "SELECT job_id FROM job WHERE queue = :queue AND state = :gone AND last_epoch >= :known "
    "AND (last_epoch, last_seq) < (:epoch, :seq) "
    "ORDER BY seq IS NULL, seq, enqueued_at_ms, job_id"
)


def ended_by_baselines(connection: Connection, queue: str) -> list[str]:
    """Ids of jobs that the baseline behind a gap did not name: they are gone, and nothing says whether they ran."""
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
