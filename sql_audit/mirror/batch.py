"""The data of one turn of the mirror: a batch of outbox entries, and the SQL rows that the batch changes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple

from rq_core.model.lib.text import counted
from sql_audit.mirror.cursor import Cursor
from sql_audit.mirror.forks import Fork
from sql_audit.mirror.gaps import Break
from sql_audit.mirror.projection.fold import Folder
from sql_audit.mirror.reading import Taken
from sql_audit.store import claim_minutes
from sql_audit.store.chain import rows_digest
from sql_audit.store.connection.copy import Rows

logger = logging.getLogger("rq_core.audit")


@dataclass(frozen=True, slots=True)
class EventBatch:
    """The outbox entries that the mirror writes to SQL in one transaction, and what the transaction must record about
    lost entries.

    ``cursor`` is the mirror's position before the batch. ``fork`` shows after which entry Redis' history differs from
    SQL's, because Redis has lost data. ``breaks`` are the beginnings of epochs (unbroken histories of the queue in
    Redis), and missing, changed or lost entries.
    """

    cursor: Cursor
    """The mirror's position before the batch, as read under the cursor's lock. The turn moves it to the end of the
    batch."""
    taken: Taken
    fork: Fork | None
    """The last entry that Redis and SQL share, if Redis has lost data and the batch begins after the loss; otherwise
    None."""
    breaks: list[Break]

    @property
    def number(self) -> int:
        """The batch's number in the chain of batches."""
        return self.cursor.batch + 1

    @property
    def found_out(self) -> bool:
        """True if the mirror must record more in SQL than the batch's events.

        It must if Redis lost entries, an epoch begins, entry numbers are missing, a listing of all live jobs (a
        baseline) is complete, or an entry could not be mirrored unchanged (quarantine).
        """
        taken = self.taken
        quarantined = any(intake.quarantined for intake in taken.intakes)
        return bool(self.fork or self.breaks or taken.completes_baseline or quarantined)

    def quarantine_rows(self, queue: str) -> list[dict[str, Any]]:
        """Return the rows to insert into ``quarantine``, for entries and jobs that cannot be mirrored unchanged."""
        kept = [] if self.fork is None else [*self.fork.passed]
        kept += [each for intake in self.taken.intakes for each in intake.quarantined]
        return [
            {
                "queue": queue, "batch": self.number, "epoch": each.at.epoch, "seq": each.at.seq,
                "ordinal": each.ordinal, "kind": each.kind, "reason": each.reason, "raw": each.raw,
            }
            for each in kept
        ]  # fmt: skip

    def log_findings(self, queue: str) -> None:
        """Write warnings to the Python log: the breaks in the numbering, and how many entries or jobs went to
        quarantine.

        The reasons of the quarantine are left out, because they may contain a job's data.
        """
        for each in self.breaks:
            if each.kind != "started":
                logger.warning(
                    "queue %s: %s recorded at %s: %s", queue, each.kind, each.at, each.reason
                )
        kept = self.quarantine_rows(queue)
        if kept:
            first, many = kept[0], counted(len(kept), "entry is", "entries are")
            at = f"{first['epoch']}-{first['seq']} ({first['kind']})"
            verify = f"`rq-core audit verify --queue {queue}` names all"
            logger.warning(
                "queue %s: %s in quarantine, the first at %s; is this mirror older than the workers? %s",
                queue, many, at, verify,
            )  # fmt: skip


class Projection(NamedTuple):
    """The rows of jobs and claims that a batch's events change. ``events`` is the number of events.

    ``jobs`` is a pair: rows to insert, and rows that replace a row in SQL. ``attempts`` has the rows of claims: rows to
    insert, and rows that may replace a row in SQL. ``minutes`` counts the ended claims by minute.
    """

    events: int
    at_ms: int
    """Unix ms of the last event."""
    digest: str
    """SHA-256 (hex) of the rows of the batch's events, for the chain of hashes."""
    jobs: tuple[Rows, Rows]
    attempts: tuple[Rows, Rows]
    minutes: list[claim_minutes.Row]

    @classmethod
    def of(cls, folder: Folder, text: str) -> Projection:
        """Return the rows that the events in ``folder`` change. ``text`` is the events' rows in PostgreSQL's COPY
        format.
        """
        return cls(
            len(folder.events),
            folder.at_ms,
            rows_digest(text),
            folder.job_rows(),
            folder.attempt_rows(),
            claim_minutes.minute_rows(folder.attempts),
        )
