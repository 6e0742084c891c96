"""The result of ``audit verify``: one verdict on all queues, and each queue's violations, notes and counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from sql_audit.proof.findings import Loss, Note, SetBack, Violation
from sql_audit.times import readable

UNDER_WAY: Final = "a prune up to here is under way, or was interrupted: run it again"
"""The text of the note that a log's last prune was interrupted or is still running."""


class LogVerdict(StrEnum):
    """The verdict of a check: holds (exit status 0 of ``audit verify``), violated (1), or unknown (2)."""

    HOLDS = "holds"
    VIOLATED = "violated"
    UNKNOWN = "unknown"
    """No violation was found, but something cannot be proved; notes give the reasons."""

    @property
    def status(self) -> int:
        return list(LogVerdict).index(self)


class LogCut(NamedTuple):
    """The entry up to which a queue's log was last pruned. Up to this entry, the log has only the events of the queue
    itself and of the jobs that the prune left.
    """

    epoch: int
    number: int
    cut_at_ms: int
    """Unix ms of the last event up to this entry."""
    at_ms: int
    """Unix ms at which the log was pruned."""
    by: str
    head: str
    """The hash of the chain of batches at this entry."""
    done: bool

    @property
    def says(self) -> str:
        return (
            f"from after {self.epoch}-{self.number} ({readable(self.cut_at_ms)}), "
            f"after a prune at {readable(self.at_ms)} by {self.by}"
        )


@dataclass(slots=True)
class QueueResult:
    """The result of the check of one queue's log: the last checked entry, the counts, the violations, and the notes."""

    queue: str
    epoch: int | None
    number: int | None
    """The number of the last checked entry within its epoch; ``epoch`` and this number identify the entry."""
    at_ms: int | None
    head: str
    """The hash of the chain of batches at the last checked entry."""
    events: int = 0
    entries: int = 0
    batches: int = 0
    live: int = 0
    """Number of jobs that are live after the last checked event."""
    orphans: int = 0
    """Number of events in SQL that Redis forgot: they are not part of the history with which Redis continued."""
    losses: list[Loss] = field(default_factory=list)
    """Losses of events by Redis, in order of the epochs with which Redis continued."""
    set_back: list[SetBack] = field(default_factory=list)
    """The first occasions on which Redis' clock went back."""
    restated: int = 0
    """Number of ``baseline`` events that disagree with the earlier events about a job's state or claim. (A baseline
    states each live job's state again, for example after a repair.)"""
    pruned: LogCut | None = None
    """The entry up to which the log was last pruned; None if it was never pruned."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of violations by invariant. It also counts violations that are not listed in ``violations``."""
    violations: list[Violation] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    """Reasons why something is unknown."""

    @property
    def verdict(self) -> LogVerdict:
        if self.violations:
            return LogVerdict.VIOLATED
        return LogVerdict.UNKNOWN if self.notes else LogVerdict.HOLDS

    def add(self, violation: Violation) -> None:
        self.violations.append(violation)
        self.counts[violation.invariant] = self.counts.get(violation.invariant, 0) + 1

    @property
    def says(self) -> str:
        """A sentence that says which part of the log was checked."""
        if self.epoch is None or self.at_ms is None:
            return f"{self.queue}: nothing mirrored yet"
        through = (
            f"{self.queue}: complete through epoch {self.epoch}, number {self.number} "
            f"({readable(self.at_ms)})"
        )
        return through if self.pruned is None else f"{through}, {self.pruned.says}"


@dataclass(slots=True)
class VerifyResult:
    """The result of the check of all queues."""

    queues: dict[str, QueueResult] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """Faults that concern no single checked queue, such as a changed schema, rows of a queue without a row in
    ``mirror_cursor``, or a kept hash that is in no chain."""

    @property
    def events(self) -> int:
        return sum(queue.events for queue in self.queues.values())

    @property
    def violations(self) -> list[Violation]:
        return [v for queue in self.queues.values() for v in queue.violations]

    @property
    def verdict(self) -> LogVerdict:
        found = {queue.verdict for queue in self.queues.values()}
        if self.problems or LogVerdict.VIOLATED in found:
            return LogVerdict.VIOLATED
        return LogVerdict.UNKNOWN if LogVerdict.UNKNOWN in found or not found else LogVerdict.HOLDS
