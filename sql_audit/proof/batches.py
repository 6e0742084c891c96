"""Whether a queue's events are those that its batches committed, and its cursor stands where the last batch ends (I7)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rq_core.model.events import OutboxId
from sql_audit.proof.log import Batch
from sql_audit.proof.replay import VIOLATIONS_KEPT, Violation
from sql_audit.proof.result import QueueResult
from sql_audit.store.chain import chain, genesis, rows_digest
from sql_audit.store.copy import copy_text
from sql_audit.store.rows import EventRow


class BatchProof:
    """The chain of one queue. Give it the batches in order, then the cursor; what is wrong goes to ``result``."""

    def __init__(self, result: QueueResult, audit_id: str, wanted: Collection[str]) -> None:
        """``wanted``: heads that were kept elsewhere."""
        self.result = result
        self.queue = result.queue
        self.number = 0
        self.head = genesis(audit_id, self.queue)
        self.last: Batch | None = None
        self._wanted = frozenset(wanted)
        self.seen = {self.head} & self._wanted
        """Which of the wanted heads are in the chain."""

    def begin_behind(self, cut: Any) -> None:
        """Go on from the head that a prune recorded, a row of mirror_prune."""
        self.number, self.head = cut.batch, cut.head
        self.seen |= {cut.head} & self._wanted

    def check(self, batch: Batch, strays: Sequence[EventRow], rows: Sequence[EventRow]) -> None:
        """Look at the next batch. ``strays``: the events before it that are in none."""
        self.number += 1
        self.last = batch
        if strays:
            self._broken(batch, f"{len(strays)} events before it are in no batch", strays[0])
        if batch.number != self.number:
            self._broken(batch, f"batch {self.number} is missing before it")
            self.number = batch.number
        if batch.prev != self.head:
            self._broken(batch, "does not follow from the batch before")
        if len(rows) != batch.events:
            self._broken(batch, f"has {len(rows)} events, {batch.events} were committed")
        digest = rows_digest(copy_text(rows))
        if digest != batch.digest:
            self._broken(batch, "its events are not those that were committed")
        # The head of what is really there, so that a change shows to the end of the chain.
        said = batch.prev, self.queue, batch.number, batch.first, batch.last, batch.events
        if chain(*said, batch.digest) != batch.head:
            self._broken(batch, "its head is not that of its contents")
        self.head = batch.head
        if batch.head in self._wanted:
            self.seen.add(batch.head)

    def _broken(self, batch: Batch, says: str, row: EventRow | None = None) -> None:
        at = batch.first if row is None else OutboxId(row[1], row[2])
        at_ms = self.result.at_ms or 0 if row is None else row[5]
        self._violated(
            at, 0, at_ms, "batch", f"batch {batch.number} ({batch.first} to {batch.last}): {says}"
        )

    def _violated(self, at: OutboxId, ordinal: int, at_ms: int, what: str, says: str) -> None:
        if self.result.counts.get("I7", 0) < VIOLATIONS_KEPT:
            found = "I7", self.queue, *at, ordinal, at_ms, what, None, None, None, says
            self.result.add(Violation(*found))

    def check_rest(self, rows: Sequence[EventRow]) -> None:
        """Look at the events up to the cursor that are behind the last batch."""
        if rows:
            says = f"{len(rows)} events are in no batch"
            at = OutboxId(rows[0][1], rows[0][2])
            self._violated(at, rows[0][3], rows[0][5], "batch", says)

    def check_cursor(self, cursor: Any, events: int, beyond: Any) -> None:
        """Look whether the cursor, a row of mirror_cursor, is the end of the last batch.

        ``events``: how many there are and were; ``beyond``: the first after the cursor, if there is one.
        """
        end, at_ms = OutboxId(cursor.epoch or 0, cursor.seq or 0), cursor.at_ms or 0

        def wrong(at: OutboxId, says: str) -> None:
            self._violated(at, 0, at_ms, "cursor", says)

        if beyond is not None:
            says = f"the cursor stands at {end}, and there are events after it"
            wrong(OutboxId(beyond.epoch, beyond.seq), says)
        if (self.number, self.head) != (cursor.batch, cursor.head):
            wrong(end, f"the chain ends with batch {self.number}, the cursor counts {cursor.batch}")
        if events != cursor.events:
            wrong(end, f"there are {events} events, the cursor counts {cursor.events}")
