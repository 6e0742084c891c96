"""The writes of one turn of the mirror: a batch of entries after the cursor, and the rows made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from sql_audit.mirror.cursor import Cursor
from sql_audit.mirror.forks import Fork
from sql_audit.mirror.gaps import Break
from sql_audit.mirror.projection.fold import Folder
from sql_audit.mirror.reading import Taken
from sql_audit.store import claim_minutes
from sql_audit.store.chain import rows_digest
from sql_audit.store.connection.copy import Rows


@dataclass(frozen=True, slots=True)
class Batch:
    """The entries after the cursor that one turn writes, and how they follow it."""

    cursor: Cursor
    """As locked; it is moved with the batch."""
    taken: Taken
    fork: Fork | None
    """Where Redis' history left SQL's, if its first entry says so."""
    breaks: list[Break]

    @property
    def number(self) -> int:
        """Its number in the chain."""
        return self.cursor.batch + 1

    @property
    def found_out(self) -> bool:
        """Whether the mirror found something that no event says."""
        taken = self.taken
        quarantined = any(intake.quarantined for intake in taken.intakes)
        return bool(self.fork or self.breaks or taken.completes_baseline or quarantined)

    def quarantine_rows(self, queue: str) -> list[dict[str, Any]]:
        """Return the rows of ``quarantine`` for entries that SQL cannot take."""
        kept = [] if self.fork is None else [*self.fork.passed]
        kept += [each for intake in self.taken.intakes for each in intake.quarantined]
        return [
            {
                "queue": queue, "batch": self.number, "epoch": each.at.epoch, "seq": each.at.seq,
                "ordinal": each.ordinal, "kind": each.kind, "reason": each.reason, "raw": each.raw,
            }
            for each in kept
        ]  # fmt: skip


class Projection(NamedTuple):
    """The rows that a batch's events change."""

    events: int
    at_ms: int
    """The time of the last event (Unix ms)."""
    digest: str
    """SHA-256 of the events' rows."""
    jobs: tuple[Rows, Rows]
    attempts: tuple[Rows, Rows]
    minutes: list[claim_minutes.Row]

    @classmethod
    def of(cls, folder: Folder, text: str) -> Projection:
        """``text``: the events' rows as COPY has them."""
        return cls(
            len(folder.events),
            folder.at_ms,
            rows_digest(text),
            folder.job_rows(),
            folder.attempt_rows(),
            claim_minutes.minute_rows(folder.attempts),
        )
