"""The numbering of outbox entries across epochs, and the first entry of an epoch.

An epoch is one unbroken history of a queue in Redis: a failover or a flush begins the next epoch. An entry has the
number ``EPOCH-SEQ``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from rq_core.model.events import OutboxId
from rq_core.model.table.reasons import RESTATED_BY


class Beginning(NamedTuple):
    """The first entry of an epoch, which is an unbroken history of a queue in Redis."""

    id: OutboxId
    at_ms: int
    reason: str | None
    """The reason why the epoch began."""
    last: OutboxId | None
    """The last entry that Redis had when it began the epoch; None if Redis had no entry."""

    @classmethod
    def of(cls, at: OutboxId, at_ms: int, facts: Mapping[str, Any]) -> Beginning:
        """Make a Beginning from the fields (``facts``) of an ``epoch_started`` event."""
        reason = facts.get("reason")
        return cls(at, at_ms, reason if isinstance(reason, str) else None, last_known(facts))

    @property
    def is_restated(self) -> bool:
        """True if the epoch begins with a baseline: events that list the state of each live job again."""
        return self.reason in RESTATED_BY


def last_known(facts: Mapping[str, Any]) -> OutboxId | None:
    """Return the last entry that Redis had when it began an epoch. ``facts`` are the fields of the ``epoch_started``
    event.

    Return None if Redis had no entry, or if the field ``last`` is not a number that SQL can store.
    """
    last = facts.get("last")
    try:
        found = OutboxId.parse(last) if isinstance(last, str) else None
    except ValueError:
        return None
    return found if found is None or max(found) < 2**63 else None


def follows(before: OutboxId, after: OutboxId) -> bool:
    """Return whether no entry number is missing between the entries ``before`` and ``after``.

    Each epoch numbers its entries from 0. So entry 0 of a later epoch follows any entry of an earlier epoch.
    """
    if after.epoch == before.epoch:
        return after.seq == before.seq + 1
    return after.epoch > before.epoch and after.seq == 0


def contiguous(ids: Iterable[OutboxId]) -> bool:
    """Return whether no number is missing in a sequence of entries."""
    return all(follows(a, b) for a, b in pairwise(ids))
