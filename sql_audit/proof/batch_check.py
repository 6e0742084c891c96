"""Checks a queue's chain of batches (invariant I7), and that the mirror's position is at the end of the last batch.

A batch is what the mirror wrote in one transaction, or the record of a prune. Its hash must fit its events, its rows
about epochs, losses, quarantine and prunes, and the hash of the batch before.
"""

# ruff: noqa: S608 - statements are joined from the schema's own names; values are bound

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from rq_core.model.lib.text import counted
from sql_audit.proof.findings import VIOLATIONS_KEPT, Violation
from sql_audit.proof.log import LoggedBatch
from sql_audit.proof.result import QueueResult
from sql_audit.store.chain import FOUND, NOTHING_FOUND, Link, found_digest, genesis, rows_digest
from sql_audit.store.connection.copy import copy_text, event_line
from sql_audit.store.connection.database import Database
from sql_audit.store.job_rows import EventRow

_FOUND_BY: Final = text(
    " UNION ".join(f"SELECT batch FROM {table.name} WHERE queue = :queue" for table in FOUND)
)
_GAPS: Final = text(
    "SELECT COUNT(*) FROM mirror_epoch "
    "WHERE queue = :queue AND kind IN ('gap', 'changed', 'lost') AND batch <= :batch"
)
_LAST_BATCH: Final = text(
    "SELECT COALESCE((SELECT MAX(batch) FROM mirror_batch WHERE queue = :queue), 0) AS batch, "
    "batch AS counted FROM mirror_cursor WHERE queue = :queue"
)
_QUARANTINED: Final = text(
    "SELECT COUNT(*) FROM quarantine WHERE queue = :queue AND batch <= :batch"
)


class BatchProof:
    """Checks the chain of one queue, and adds violations to ``result``.

    Call :meth:`check` with each batch in order, then :meth:`check_cursor`.
    """

    def __init__(
        self, database: Database, result: QueueResult, audit_id: str, wanted: Collection[str]
    ) -> None:
        """Prepare the check of one queue's chain. The chain begins with a hash of ``audit_id`` and the queue's name.

        ``wanted`` are hashes of batches (heads) that an operator kept outside the database. :attr:`seen` has those that
        occur in the chain.
        """
        self.database = database
        self.result = result
        self.queue = result.queue
        self.number = 0
        self.head = genesis(audit_id, self.queue)
        self._last: Link | None = None
        self._at_ms: int | None = None
        self._cut: Any = None
        self._entries = self._events = self._bytes = 0
        self._wanted = frozenset(wanted)
        self.seen = dict.fromkeys({self.head} & self._wanted, 0)
        """By wanted hash (head): the number of the batch that has this hash. Wanted hashes that the chain lacks are
        left out."""
        with database.readers.connect() as connection:
            self._found_by = set(connection.execute(_FOUND_BY, {"queue": self.queue}).scalars())
        """The numbers of the batches that rows of epochs, losses, quarantine or prunes name."""

    def begin_behind(self, cut: Any) -> None:
        """Begin the check after a prune. ``cut`` is the row of ``mirror_prune`` with the chain's hash and counts at the
        entry up to which the prune removed jobs.
        """
        self.number, self.head, self._cut = cut.cut_batch, cut.head, cut
        self._entries, self._events = cut.through_entries, cut.through_events
        self.seen |= dict.fromkeys({cut.head} & self._wanted, cut.cut_batch)

    def check(
        self, batch: LoggedBatch, strays: Sequence[EventRow], rows: Sequence[EventRow]
    ) -> None:
        """Check the next batch of the chain. ``rows`` are the batch's events. ``strays`` are events between the
        preceding batch and this one, which belong to no batch.
        """
        link = batch.link
        self.number += 1
        if strays:
            self._broken(
                link,
                f"{counted(len(strays), 'event before it is', 'events before it are')} in no batch",
                strays[0],
            )
        if link.batch != self.number:
            self._broken(link, f"batch {self.number} is missing before it")
            self.number = link.batch
        if link.prev != self.head:
            self._broken(link, "does not follow from the batch before")
        if len(rows) != link.events:
            self._broken(link, f"has {counted(len(rows), 'event')}, {link.events:,} were committed")
        if rows_digest(copy_text(rows, list(map(event_line, rows)))) != link.digest:
            self._broken(link, "its events are not those that were committed")
        if self._found(link) != link.found:
            self._broken(link, "its rows of epochs, losses, quarantine or prunes were changed")
        # ``link.head`` is computed from the contents: a changed batch does not have its stored head.
        if link.head != batch.head:
            self._broken(link, "its head is not that of its contents")
        self.head = batch.head
        if link.entries:
            self._last = link
        self._entries += link.entries
        self._events += len(strays) + len(rows)
        self._bytes += link.bytes
        if rows:
            self._at_ms = rows[-1][5]
        if batch.head in self._wanted:
            self.seen[batch.head] = link.batch

    def _found(self, link: Link) -> str:
        if link.batch not in self._found_by:
            return NOTHING_FOUND
        self._found_by.discard(link.batch)
        with self.database.readers.connect() as connection:
            return found_digest(connection, self.queue, link.batch)

    def _broken(self, link: Link, says: str, row: EventRow | None = None) -> None:
        at = link.first if row is None else OutboxId(row[1], row[2])
        at_ms = self.result.at_ms or 0 if row is None else row[5]
        where = f"batch {link.batch} ({link.first} to {link.last}): {says}"
        self._violated(at, 0, at_ms, "batch", where)

    def _violated(self, at: OutboxId, ordinal: int, at_ms: int, what: str, says: str) -> None:
        if self.result.counts.get("I7", 0) < VIOLATIONS_KEPT:
            found = "I7", self.queue, *at, ordinal, at_ms, what, None, None, None, says
            self.result.add(Violation(*found))

    def check_rest(self, rows: Sequence[EventRow]) -> None:
        """Report the events between the last batch and the mirror's position as violations: they belong to no batch."""
        self._events += len(rows)
        if rows:
            says = counted(len(rows), "event is in no batch", "events are in no batch")
            at = OutboxId(rows[0][1], rows[0][2])
            self._violated(at, rows[0][3], rows[0][5], "batch", says)

    def check_cursor(self, connection: Connection, cursor: Any, beyond: Any) -> None:
        """Check that the mirror's position in the queue (the cursor) is at the end of the last batch, and has the sums
        of all batches.

        ``cursor`` is the queue's row of ``mirror_cursor``. ``beyond`` is the first event after the cursor, or None.
        ``connection`` reads the current rows, which may be newer than ``cursor``.
        """
        end, at_ms = OutboxId(cursor.epoch or 0, cursor.seq or 0), cursor.at_ms or 0

        def wrong(at: OutboxId, says: str) -> None:
            self._violated(at, 0, at_ms, "cursor", says)

        if beyond is not None:
            says = f"the cursor is at {end}, and there are events after it"
            wrong(OutboxId(beyond.epoch, beyond.seq), says)
        if (self.number, self.head) != (cursor.batch, cursor.head):
            wrong(end, f"the chain ends with batch {self.number}, the cursor counts {cursor.batch}")
        if self._events != cursor.events:
            found = counted(self._events, "event is there", "events are there")
            wrong(end, f"{found}, the cursor counts {cursor.events:,}")
        for name, made in self._cursor_as_made(connection, cursor.batch).items():
            if getattr(cursor, name) != made:
                wrong(end, f"{name} is {getattr(cursor, name)!r}, by the batches {made!r}")
        now = connection.execute(_LAST_BATCH, {"queue": self.queue}).one()
        if now.batch != now.counted:
            wrong(end, f"there is a batch {now.batch}, the cursor counts {now.counted}")
        if (unknown := self._unknown_batches(connection, now.batch)) != []:
            says = f"rows of epochs, losses, quarantine or prunes name batch {unknown[0]}, which is not there"
            wrong(end, says)

    def _cursor_as_made(self, connection: Connection, batch: int) -> dict[str, Any]:
        """Return the values that the cursor's columns should have, computed from the batches."""
        if self._last is None:
            return {}
        last, upto = self._last, {"queue": self.queue, "batch": batch}
        made: dict[str, Any] = {
            "epoch": last.last.epoch, "seq": last.last.seq, "anchor": last.anchor,
            "trim_jobs": last.jobs, "trim_bytes": last.bytes, "entries": self._entries,
            "gaps": connection.execute(_GAPS, upto).scalar_one(),
        }  # fmt: skip
        if self._at_ms is not None:
            made["at_ms"] = self._at_ms
        if self._cut is None:
            # After a prune, these sums cannot be computed: no row counts the removed part.
            made["bytes"] = self._bytes
            made["quarantined"] = connection.execute(_QUARANTINED, upto).scalar_one()
        return made

    def _unknown_batches(self, connection: Connection, now: int) -> list[int]:
        """Return the numbers of missing batches: rows about epochs, losses, quarantine or prunes name them, but they do
        not exist.
        """
        found = set(connection.execute(_FOUND_BY, {"queue": self.queue}).scalars())
        return sorted(number for number in found if not 1 <= number <= now)
