"""Which events are orphaned: SQL has them, and they are no part of the history that Redis went on with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId

_RANGES: Final = text(
    "SELECT after_epoch, after_seq, before_epoch, events FROM orphaned_range WHERE queue = :queue "
    "ORDER BY before_epoch"
)
_PASSED: Final = text("SELECT epoch, passed FROM mirror_loss WHERE queue = :queue AND passed > 0")


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


def passed(connection: Connection, queue: str) -> dict[int, int]:
    """How many entries before the beginning of an epoch could not be mirrored, by epoch."""
    rows = connection.execute(_PASSED, {"queue": queue})
    return {row.epoch: row.passed for row in rows}


def in_any(entry: tuple[int, int], orphaned: Iterable[Range]) -> bool:
    """Whether an entry is orphaned."""
    return any(entry in each for each in orphaned)
