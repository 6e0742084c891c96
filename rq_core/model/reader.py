"""What an audit log tells those who watch queues, without their knowing how it is kept.

The package that keeps the log implements :class:`AuditReader`; its entry point is found by
:func:`rq_core.model.plugins.open_reader`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class QueueLog:
    """How far one queue's log goes, what is missing from it, and how much of it is proven."""

    queue: str
    events: int
    """Events in the log, ever."""
    last_at_ms: int | None
    """Unix ms, when the last of them happened, by Redis' clock."""
    gaps: int
    """Recorded breaks in the numbering."""
    quarantined: int
    """Entries that could not be read, kept as they were."""
    losses: int
    """How often Redis forgot something that was in the log."""
    orphaned_events: int
    """Events in the log that Redis forgot."""
    proven_events: int | None
    """Events that the last proof went through; None: nothing was ever proven."""
    proven_at_ms: int | None
    """Unix ms, when that was, by the clock of who verified."""


class EndedClaims(NamedTuple):
    """The claims of one task that ended in one way, ever."""

    queue: str
    task: str
    """Empty: not known."""
    outcome: str
    """The event that ended them, or ``lost``."""
    claims: int
    waited_ms: int
    """How long their jobs had been ready, all together."""
    ran_ms: int
    """How long they ran, all together."""


@dataclass(frozen=True, slots=True)
class LogOverview:
    """One look at a log."""

    queues: tuple[QueueLog, ...]
    """By name."""
    claims: tuple[EndedClaims, ...]
    """What Redis forgot and what a prune removed goes on being counted."""


class AuditReader(Protocol):
    """Reads one audit log. Threads may share it."""

    def look(self) -> LogOverview:
        """How the log stands. Raises RqCoreError if the database does not answer."""
        ...

    def mirrored(self, client: Any, /) -> list[str]:
        """The queues of a client's Redis and prefix of which the log is to go on, whether Redis has them or not, by
        name: those that were mirrored and whose log was not switched off. Raises RqCoreError if Redis or the database
        does not answer, or the log is that of another Redis."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...
