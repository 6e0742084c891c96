"""Reads from ``mirror_loss`` what Redis has lost: ranges of events that it forgot, and losses that ended live jobs.

An event that SQL has, but that Redis forgot and continued without, is *orphaned*.
"""

# ruff: noqa: S608 - statements are joined from constants; values are bound

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from sql_audit.store.schema.tables import GONE, LOST

_RANGES: Final = text(
    "SELECT after_epoch, after_seq, before_epoch, events FROM orphaned_range WHERE queue = :queue "
    # A forged row may have nulls here. Its batch's hash shows that it is forged.
    "AND after_epoch IS NOT NULL AND after_seq IS NOT NULL ORDER BY before_epoch"
)
_PASSED: Final = text("SELECT epoch, passed FROM mirror_loss WHERE queue = :queue AND passed > 0")

_ENDS: Final = text(
    "SELECT kind, epoch, upto_epoch, upto_seq, at_ms FROM mirror_loss "
    "WHERE queue = :queue AND kind <> 'orphaned' ORDER BY id"
)

LOST_AT: Final = (
    "(SELECT MIN(l.at_ms) FROM mirror_loss l WHERE l.queue = j.queue AND l.epoch > j.last_epoch AND "
    f"(j.state = '{GONE}' AND l.kind = 'restated' OR j.state = '{LOST}' AND (l.kind = 'forgotten' OR "
    "l.kind = 'orphaned' AND (j.last_epoch, j.last_seq) > (l.after_epoch, l.after_seq))))"
)
"""An SQL expression for the time (Unix ms, Redis' clock) at which Redis lost a job ``j`` whose state is lost or
gone."""


class Range(NamedTuple):
    """A range of outbox entries that Redis forgot: those after ``after`` and before ``before``, the first entry of an
    epoch.

    ``events`` is the number of events in these entries.
    """

    after: OutboxId
    before: OutboxId
    events: int = 0

    def __contains__(self, entry: object) -> bool:
        return isinstance(entry, tuple) and self.after < entry < self.before


def ranges(connection: Connection, queue: str) -> list[Range]:
    """Return the ranges of a queue's entries that Redis forgot, oldest first."""
    return [
        Range(OutboxId(row.after_epoch, row.after_seq), OutboxId(row.before_epoch, 0), row.events)
        for row in connection.execute(_RANGES, {"queue": queue})
    ]


class LossEnd(NamedTuple):
    """A loss in Redis, or a list of all live jobs (a baseline), that ended the live jobs without an event in ``epoch``
    or later.

    ``state`` is the new state of these jobs. ``at_ms`` is the time of the end (Unix ms).
    """

    at: OutboxId
    """The entry at which the jobs ended."""
    epoch: int
    state: str
    at_ms: int


def ends(connection: Connection, queue: str, orphaned: Sequence[Range]) -> list[LossEnd]:
    """Return what ended live jobs of a queue without an event of the job: losses of Redis, and complete baselines
    (lists of all live jobs), oldest first.

    Those within the ranges ``orphaned``, which Redis forgot, are left out.
    """
    found = []
    for row in connection.execute(_ENDS, {"queue": queue}):
        began = OutboxId(row.epoch, 0)
        if row.kind == "forgotten":
            end = LossEnd(began, row.epoch, LOST, row.at_ms)
        else:
            end = LossEnd(OutboxId(row.upto_epoch, row.upto_seq), row.epoch, GONE, row.at_ms)
        if not in_any(began, orphaned) and not in_any(end.at, orphaned):
            found.append(end)
    return found


def passed(connection: Connection, queue: str) -> dict[int, int]:
    """Return, by epoch, how many of Redis' entries before the epoch the mirror could not copy.

    Epochs without such entries are left out.
    """
    rows = connection.execute(_PASSED, {"queue": queue})
    return {row.epoch: row.passed for row in rows}


def in_any(entry: tuple[int, int], orphaned: Iterable[Range]) -> bool:
    """Return whether an entry is in one of these ranges of entries that Redis forgot."""
    return any(entry in each for each in orphaned)
