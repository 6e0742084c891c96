"""The result of ``audit verify``: a verdict for all, and for each queue its violations, notes and counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from sql_audit.proof.findings import Loss, Note, SetBack, Violation
from sql_audit.times import readable

UNDER_WAY: Final = "a prune up to here is under way, or was interrupted: run it again"
"""The note on a log whose last prune has not ended."""


class LogVerdict(StrEnum):
    """The verdict of a check. The exit status is its place here: 0, 1, 2."""

    HOLDS = "holds"
    VIOLATED = "violated"
    UNKNOWN = "unknown"
    """Nothing wrong was found, but the log itself says that it does not know all."""

    @property
    def status(self) -> int:
        return list(LogVerdict).index(self)


class LogCut(NamedTuple):
    """The cut of a queue's log by its last prune. Up to there only the jobs that the prune kept are left."""

    epoch: int
    number: int
    cut_at_ms: int
    """The time of the last event there."""
    at_ms: int
    by: str
    head: str
    """The chain's head at the cut."""
    done: bool

    @property
    def says(self) -> str:
        return (
            f"from after {self.epoch}-{self.number} ({readable(self.cut_at_ms)}), "
            f"after a prune at {readable(self.at_ms)} by {self.by}"
        )


@dataclass(slots=True)
class QueueResult:
    """The findings about one queue."""

    queue: str
    epoch: int | None
    number: int | None
    """With ``epoch``: the last entry that was checked."""
    at_ms: int | None
    head: str
    """The chain's head at that entry."""
    events: int = 0
    entries: int = 0
    batches: int = 0
    live: int = 0
    """Jobs alive at the end."""
    orphans: int = 0
    """Events that Redis forgot and SQL has; they are not part of the history that went on."""
    losses: list[Loss] = field(default_factory=list)
    """Losses of Redis, by the beginnings of the epochs with which it went on."""
    set_back: list[SetBack] = field(default_factory=list)
    """Where Redis' clock went back, the first ones."""
    restated: int = 0
    """Baseline events that differ from the log: repairs."""
    pruned: LogCut | None = None
    """The cut of the log, if it was pruned."""
    counts: dict[str, int] = field(default_factory=dict)
    """Violations by invariant, those not listed included."""
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
        """The part of the log that was checked, in one line."""
        if self.epoch is None or self.at_ms is None:
            return f"{self.queue}: nothing mirrored yet"
        through = (
            f"{self.queue}: complete through epoch {self.epoch}, number {self.number} "
            f"({readable(self.at_ms)})"
        )
        return through if self.pruned is None else f"{through}, {self.pruned.says}"


@dataclass(slots=True)
class VerifyResult:
    """The findings about all queues."""

    queues: dict[str, QueueResult] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """Violations of no queue: a head kept elsewhere that is in no chain."""

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
