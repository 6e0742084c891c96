"""Compares the answers that producers got with the jobs that exist."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field


@dataclass
class Answers:
    """The ids of jobs, sorted by the answer that the producer got."""

    attempted: set[str] = field(default_factory=set)
    """The jobs that were sent, whatever happened to them."""
    acknowledged: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """The jobs that, according to the answers to their producers, were never in the queue."""
    turned_away: set[str] = field(default_factory=set)
    """The jobs that a full cap or the holder of their unique name kept out when the call was last sent. An earlier
    reply may have been lost, and Redis may have forgotten that the job was in the queue. In this case the log has the
    job, as orphaned."""

    def strangers(self, there: AbstractSet[str]) -> list[str]:
        """Return the jobs that exist although no producer sent them."""
        return sorted(there - self.attempted)

    def contradicting(self, ever: AbstractSet[str], there: AbstractSet[str]) -> list[str]:
        """Return the jobs that exist, or once existed, although Redis had answered that they were not enqueued."""
        return sorted((ever & self.refused) | (there & self.turned_away))

    def missing(self, there: AbstractSet[str]) -> list[str]:
        """Return the acknowledged jobs that do not exist."""
        return sorted(self.acknowledged - there)
