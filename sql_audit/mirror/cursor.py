"""The mirror's position in a queue: a row of ``mirror_cursor``, and the entry that Redis must still have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rq_core.model.events import OutboxId


class Anchor(NamedTuple):
    """The last mirrored entry, which stays in the outbox for the next read to find unchanged."""

    at: OutboxId
    fingerprint: str


@dataclass(slots=True)
class Cursor:
    """A row of mirror_cursor."""

    queue: str
    epoch: int | None
    seq: int | None
    at_ms: int | None
    anchor: str | None
    """The fingerprint of the last mirrored entry."""
    batch: int
    head: str
    entries: int
    events: int
    bytes: int
    quarantined: int
    gaps: int
    trim_jobs: int
    trim_bytes: int
    prefix: str | None
    stamp: str | None
    """With the prefix: the queue's source."""

    @property
    def position(self) -> OutboxId | None:
        """The last mirrored entry."""
        if self.epoch is None or self.seq is None:
            return None
        return OutboxId(self.epoch, self.seq)

    @property
    def last(self) -> Anchor | None:
        """The last mirrored entry, with what it must be."""
        position = self.position
        return None if position is None else Anchor(position, self.anchor or "")
