"""Collects the violations, notes and losses that the replay of one queue finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rq_core.model.events import OutboxId
from sql_audit.proof.findings import VIOLATIONS_KEPT, Loss, Note, SetBack, Violation
from sql_audit.proof.replay.contradictions import Fault
from sql_audit.store.job_rows import EventRow


class LogFindings:
    """Collects the findings of the replay of one queue's log. Each new finding is about ``row``, the current event."""

    def __init__(self, queue: str, *, since_ms: int, before_cut: bool) -> None:
        """Begin without findings. For events before ``since_ms`` (Unix ms), only losses are recorded."""
        self.queue = queue
        self.since_ms = since_ms
        self.before_cut = before_cut
        """True while the replay reads the pruned part of the log. Losses are then recorded, but no violations or
        notes."""
        self.row: EventRow = ()
        """The row of the event that is being replayed."""
        self.violations: list[Violation] = []
        """The violations: the first VIOLATIONS_KEPT of each invariant."""
        self.counts: Counter[str] = Counter()
        """Numbers of all violations, by invariant."""
        self.notes: list[Note] = []
        self.losses: list[Loss] = []
        """Losses of events by Redis that the log shows."""
        self.set_back: list[SetBack] = []
        """The first VIOLATIONS_KEPT occasions on which Redis' clock went back."""
        self.forgotten = 0
        """Number of events since the last loss that Redis has forgotten."""

    def violated(self, invariant: str, says: str, *, row: EventRow | None = None) -> None:
        """Record that an event violates an invariant. The event is ``row``, or without ``row`` the current event.

        ``says`` is a phrase that continues a sentence about the event.
        """
        queue, epoch, seq, ordinal, kind, at_ms, job_id, claim, worker, _, _ = row or self.row
        if at_ms < self.since_ms or self.before_cut:
            return
        self.counts[invariant] += 1
        if self.counts[invariant] <= VIOLATIONS_KEPT:
            found = Violation(
                invariant, queue, epoch, seq, ordinal, at_ms, kind, job_id, claim, worker, says
            )
            self.violations.append(found)

    def judge(self, faults: Iterable[Fault]) -> None:
        """Record each of these faults of the current event as a violation."""
        for invariant, says in faults:
            self.violated(invariant, says)

    def note(self, says: str) -> None:
        """Record that something cannot be judged from the current event on. ``says`` is the reason."""
        row = self.row
        if self.before_cut:
            return
        if row[5] >= self.since_ms and len(self.notes) < VIOLATIONS_KEPT:
            self.notes.append(Note(OutboxId(row[1], row[2]), row[5], says))

    def clock_went_back(self, before: EventRow) -> None:
        """Record that the current event is earlier than ``before``, the first row of the preceding entry."""
        row = self.row
        if row[1] == before[1] and row[5] >= self.since_ms and len(self.set_back) < VIOLATIONS_KEPT:
            self.set_back.append(SetBack(OutboxId(row[1], row[2]), row[5], before[5] - row[5]))

    def lost(self, after: OutboxId, jobs: int, says: str) -> None:
        """Record a loss: Redis lost events, and ``jobs`` live jobs. ``after`` is the last entry that SQL has from
        before the loss. ``says`` describes the loss.

        The current event begins the epoch (a new history of the queue) with which Redis continued.
        """
        if self.before_cut:
            # The numbers and the entry in the text are those of jobs that the prune left in the log.
            says = f"{says} (of what the prune left)"
        row = self.row
        at = OutboxId(row[1], row[2])
        self.losses.append(Loss(at, row[5], after, self.forgotten, jobs, says))
        self.forgotten = 0
