"""What producers were answered, held against the jobs that are there."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field


@dataclass
class Answers:
    """Jobs by what their producers know of them."""

    attempted: set[str] = field(default_factory=set)
    """That were sent, whatever became of it."""
    acknowledged: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """Of which producers were told that they are not in the queue."""

    def strangers(self, there: AbstractSet[str]) -> list[str]:
        """Jobs that are there though no producer sent them."""
        return sorted(there - self.attempted)

    def contradicting(self, there: AbstractSet[str]) -> list[str]:
        """Jobs that are there though they were refused."""
        return sorted(there & self.refused)

    def missing(self, there: AbstractSet[str]) -> list[str]:
        """Jobs that are not there though they were acknowledged."""
        return sorted(self.acknowledged - there)
