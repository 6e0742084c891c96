"""The numbering of outbox entries across epochs, and the first entry of an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from rq_core.model.events import OutboxId
from rq_core.model.table.reasons import RESTATED_BY


class Beginning(NamedTuple):
    """The first entry of an epoch. ``last`` is the last entry that Redis had before the epoch."""

    id: OutboxId
    at_ms: int
    reason: str | None
    """The reason why the epoch began."""
    last: OutboxId | None
    """The last entry before the epoch that Redis knew; None if Redis knew no entry."""

    @classmethod
    def of(cls, at: OutboxId, at_ms: int, facts: Mapping[str, Any]) -> Beginning:
        """Return the beginning of an epoch, from ``facts``, the fields of its ``epoch_started`` event."""
        reason = facts.get("reason")
        return cls(at, at_ms, reason if isinstance(reason, str) else None, last_known(facts))

    @property
    def is_restated(self) -> bool:
        """Return whether the epoch begins with a baseline of all live jobs."""
        return self.reason in RESTATED_BY


def last_known(facts: Mapping[str, Any]) -> OutboxId | None:
    """Return the last entry before an epoch. ``facts`` are the fields of the epoch's ``epoch_started`` event.

    Return None if Redis knew no entry, or if the field ``last`` is not a number that SQL can store.
    """
    last = facts.get("last")
    try:
        found = OutboxId.parse(last) if isinstance(last, str) else None
    except ValueError:
        return None
    return found if found is None or max(found) < 2**63 else None


def follows(before: OutboxId, after: OutboxId) -> bool:
    """Return whether ``after`` may directly follow ``before``: no number is missing between the two entries.

    Number 0 of a later epoch follows any entry of an earlier epoch.
    """
    if after.epoch == before.epoch:
        return after.seq == before.seq + 1
    return after.epoch > before.epoch and after.seq == 0


def contiguous(ids: Iterable[OutboxId]) -> bool:
    """Return whether no number is missing in a sequence of entries."""
    return all(follows(a, b) for a, b in pairwise(ids))
