"""Where the mirror stands in a queue: a row of ``mirror_cursor``, and whether Redis still goes on from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rq_core.model.events import OutboxId
from sql_audit.mirror.gaps import contiguous
from sql_audit.mirror.intake import fingerprint
from sql_audit.mirror.reading import RawEntry


@dataclass(slots=True)
class Cursor:
    """A row of mirror_cursor."""

    queue: str
    epoch: int | None
    seq: int | None
    at_ms: int | None
    anchor: str | None
    batch: int
    head: str
    entries: int
    events: int
    bytes: int
    quarantined: int
    gaps: int
    trim_jobs: int
    trim_bytes: int

    @property
    def position(self) -> OutboxId | None:
        """The last mirrored entry."""
        if self.epoch is None or self.seq is None:
            return None
        return OutboxId(self.epoch, self.seq)

    def anchored(self, entries: Sequence[RawEntry]) -> bool:
        """Whether what was read of the outbox begins with the anchor, unchanged."""
        if self.position is None or not entries or entries[0][0] != self.position:
            return False
        return self.anchor is None or fingerprint(entries[0][1]) == self.anchor

    def continues(self, entries: Sequence[RawEntry]) -> bool:
        """Whether what was read follows the cursor without a break."""
        if self.position is not None and not self.anchored(entries):
            return False
        return contiguous(entry_id for entry_id, _ in entries)
