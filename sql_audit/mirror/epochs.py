"""How entries are numbered, and what the beginning of an epoch says.

What a beginning says is read once, when its entry is taken in; code that needs what follows from it gets the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from rq_core.model.events import OutboxId
from rq_core.model.table.reasons import RESTATED_BY


class Beginning(NamedTuple):
    """The first entry of an epoch. It names the last entry that Redis had before it."""

    id: OutboxId
    at_ms: int
    reason: str | None
    """The reason with which the epoch began."""
    last: OutboxId | None
    """The last entry before it that Redis knew; None if it knew of none."""

    @classmethod
    def of(cls, at: OutboxId, at_ms: int, facts: Mapping[str, Any]) -> Beginning:
        """``facts``: the fields of the event ``epoch_started``."""
        reason = facts.get("reason")
        return cls(at, at_ms, reason if isinstance(reason, str) else None, last_known(facts))

    @property
    def is_restated(self) -> bool:
        """Whether a baseline of all live jobs follows."""
        return self.reason in RESTATED_BY


def last_known(facts: Mapping[str, Any]) -> OutboxId | None:
    """The last entry before an epoch, by the fields of its beginning; None if Redis knew of none."""
    last = facts.get("last")
    try:
        found = OutboxId.parse(last) if isinstance(last, str) else None
    except ValueError:
        return None
    return found if found is None or max(found) < 2**63 else None


def follows(before: OutboxId, after: OutboxId) -> bool:
    """Whether there is nothing between two numbers. (What begins an epoch says so itself.)"""
    if after.epoch == before.epoch:
        return after.seq == before.seq + 1
    return after.epoch > before.epoch and after.seq == 0


def contiguous(ids: Iterable[OutboxId]) -> bool:
    """Whether each number follows the one before."""
    return all(follows(a, b) for a, b in pairwise(ids))
