"""The violations, notes and losses that the replay of one queue finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rq_core.model.events import OutboxId
from sql_audit.proof.findings import VIOLATIONS_KEPT, Loss, Note, SetBack, Violation
from sql_audit.proof.replay.contradictions import Fault
from sql_audit.store.job_rows import EventRow


class LogFindings:
    """The findings so far. Each is about ``row``, which the replay sets for each event."""

    def __init__(self, queue: str, *, since_ms: int, before_cut: bool) -> None:
        """Findings about events before ``since_ms`` are dropped."""
        self.queue = queue
        self.since_ms = since_ms
        self.before_cut = before_cut
        """Whether ``row`` lies before the cut of a prune: it is not judged, and losses are recorded all the same."""
        self.row: EventRow = ()
        """The event that is replayed now."""
        self.violations: list[Violation] = []
        """The first VIOLATIONS_KEPT of each invariant."""
        self.counts: Counter[str] = Counter()
        """All violations by invariant."""
        self.notes: list[Note] = []
        self.losses: list[Loss] = []
        """Losses of Redis that the log records."""
        self.set_back: list[SetBack] = []
        """The first times that Redis' clock went back."""
        self.forgotten = 0
        """Orphaned events since the last loss."""

    def violated(self, invariant: str, says: str) -> None:
        """Report that the row violates an invariant. ``says`` continues a sentence about the event."""
        queue, epoch, seq, ordinal, kind, at_ms, job_id, claim, worker, _, _ = self.row
        if at_ms < self.since_ms or self.before_cut:
            return
        self.counts[invariant] += 1
        if self.counts[invariant] <= VIOLATIONS_KEPT:
            found = Violation(
                invariant, queue, epoch, seq, ordinal, at_ms, kind, job_id, claim, worker, says
            )
            self.violations.append(found)

    def judge(self, faults: Iterable[Fault]) -> None:
        """Report each of these faults of the row."""
        for invariant, says in faults:
            self.violated(invariant, says)

    def note(self, says: str) -> None:
        """Note why something cannot be judged from the row on."""
        row = self.row
        if self.before_cut:
            return
        if row[5] >= self.since_ms and len(self.notes) < VIOLATIONS_KEPT:
            self.notes.append(Note(OutboxId(row[1], row[2]), row[5], says))

    def clock_went_back(self, before: EventRow) -> None:
        """Record that the row has an earlier time than ``before``, the first row of the entry before."""
        row = self.row
        if row[1] == before[1] and row[5] >= self.since_ms and len(self.set_back) < VIOLATIONS_KEPT:
            self.set_back.append(SetBack(OutboxId(row[1], row[2]), row[5], before[5] - row[5]))

    def lost(self, after: OutboxId, jobs: int, says: str) -> None:
        """Record a loss after an entry: an epoch begins with the row. ``jobs`` is the number of live jobs lost."""
        if self.before_cut:
            # The numbers and the entry named are those of jobs that the prune left.
            says = f"{says} (of what the prune left)"
        row = self.row
        at = OutboxId(row[1], row[2])
        self.losses.append(Loss(at, row[5], after, self.forgotten, jobs, says))
        self.forgotten = 0
