"""What ``mirror_loss`` says of the log: which events are orphaned (SQL has them, and they are no part of the history
that Redis went on with), and what all live jobs met that no event of theirs says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from sql_audit.store.schema.tables import GONE, LOST

_RANGES: Final = text(
    "SELECT after_epoch, after_seq, before_epoch, events FROM orphaned_range WHERE queue = :queue "
    # A made-up row may lack them; that it was made up says its batch.
    "AND after_epoch IS NOT NULL AND after_seq IS NOT NULL ORDER BY before_epoch"
)
_PASSED: Final = text("SELECT epoch, passed FROM mirror_loss WHERE queue = :queue AND passed > 0")

_ENDS: Final = text(
    "SELECT kind, epoch, upto_epoch, upto_seq, at_ms FROM mirror_loss "
    "WHERE queue = :queue AND kind <> 'orphaned' ORDER BY id"
)


class Range(NamedTuple):
    """Orphaned entries: those after the first number and before the second, which begins an epoch."""

    after: OutboxId
    before: OutboxId
    events: int = 0

    def __contains__(self, entry: object) -> bool:
        return isinstance(entry, tuple) and self.after < entry < self.before


def ranges(connection: Connection, queue: str) -> list[Range]:
    """What is orphaned of a queue's events, oldest first."""
    return [
        Range(OutboxId(row.after_epoch, row.after_seq), OutboxId(row.before_epoch, 0), row.events)
        for row in connection.execute(_RANGES, {"queue": queue})
    ]


class End(NamedTuple):
    """An end that all live jobs met of which nothing was told since ``epoch`` began."""

    at: OutboxId
    """Before what follows this entry."""
    epoch: int
    state: str
    at_ms: int


def ends(connection: Connection, queue: str, orphaned: Sequence[Range]) -> list[End]:
    """The ends that all live jobs of a queue met, oldest first."""
    found = []
    for row in connection.execute(_ENDS, {"queue": queue}):
        began = OutboxId(row.epoch, 0)
        if row.kind == "forgotten":
            end = End(began, row.epoch, LOST, row.at_ms)
        else:
            end = End(OutboxId(row.upto_epoch, row.upto_seq), row.epoch, GONE, row.at_ms)
        if not in_any(began, orphaned) and not in_any(end.at, orphaned):
            found.append(end)
    return found


def passed(connection: Connection, queue: str) -> dict[int, int]:
    """How many entries before the beginning of an epoch could not be mirrored, by epoch."""
    rows = connection.execute(_PASSED, {"queue": queue})
    return {row.epoch: row.passed for row in rows}


def in_any(entry: tuple[int, int], orphaned: Iterable[Range]) -> bool:
    """Whether an entry is orphaned."""
    return any(entry in each for each in orphaned)
