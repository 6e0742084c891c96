"""The numbering of entries, and the fields of the first entry of an epoch.

The intake reads these fields once and makes a :class:`Beginning`; other code uses the Beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from rq_core.model.events import OutboxId
from rq_core.model.table.reasons import RESTATED_BY


class Beginning(NamedTuple):
    """The first entry of an epoch. It names the last entry that Redis had before the epoch."""

    id: OutboxId
    at_ms: int
    reason: str | None
    """The reason why the epoch began."""
    last: OutboxId | None
    """The last entry before the epoch that Redis knew; None if Redis knew no entry."""

    @classmethod
    def of(cls, at: OutboxId, at_ms: int, facts: Mapping[str, Any]) -> Beginning:
        """Return the beginning from ``facts``, the fields of the event ``epoch_started``."""
        reason = facts.get("reason")
        return cls(at, at_ms, reason if isinstance(reason, str) else None, last_known(facts))

    @property
    def is_restated(self) -> bool:
        """Return whether a baseline of all live jobs follows."""
        return self.reason in RESTATED_BY


def last_known(facts: Mapping[str, Any]) -> OutboxId | None:
    """Return the last entry before an epoch, by the fields of its ``epoch_started`` event; None if Redis knew no entry,
    or if the field is not a number that SQL can keep."""
    last = facts.get("last")
    try:
        found = OutboxId.parse(last) if isinstance(last, str) else None
    except ValueError:
        return None
    return found if found is None or max(found) < 2**63 else None


def follows(before: OutboxId, after: OutboxId) -> bool:
    """Return whether no number is missing between two entries.

    A new epoch follows any entry of an earlier epoch: its first entry itself names the entry before.
    """
    if after.epoch == before.epoch:
        return after.seq == before.seq + 1
    return after.epoch > before.epoch and after.seq == 0


def contiguous(ids: Iterable[OutboxId]) -> bool:
    """Return whether each number follows the number before it, so that none is missing."""
    return all(follows(a, b) for a, b in pairwise(ids))
