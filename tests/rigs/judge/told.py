"""Answers to producers, compared with the jobs that exist."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field


@dataclass
class Answers:
    """Jobs by the answers that their producers got."""

    attempted: set[str] = field(default_factory=set)
    """That were sent, whatever became of it."""
    acknowledged: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """Of which producers were told that they were never in the queue."""
    turned_away: set[str] = field(default_factory=set)
    """That a full cap, or the holder of their name, kept out when the call was sent last. Before, its reply may have
    been lost, and Redis may have forgotten that the job was in the queue: the log has it, as orphaned."""

    def strangers(self, there: AbstractSet[str]) -> list[str]:
        """Return the jobs that exist though no producer sent them."""
        return sorted(there - self.attempted)

    def contradicting(self, ever: AbstractSet[str], there: AbstractSet[str]) -> list[str]:
        """Return the jobs that exist or existed although their producer was answered that they were not enqueued."""
        return sorted((ever & self.refused) | (there & self.turned_away))

    def missing(self, there: AbstractSet[str]) -> list[str]:
        """Return the acknowledged jobs that do not exist."""
        return sorted(self.acknowledged - there)
