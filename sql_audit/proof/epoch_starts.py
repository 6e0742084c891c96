"""How epochs began, by their first events, and what that says of those before: why each ended, and which events Redis
forgot.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rq_core.model.events import OutboxId


class EpochStart(NamedTuple):
    """How an epoch began, as its first event says."""

    epoch: int
    reason: str
    last: OutboxId | None
    """The last entry that Redis knew of before; None: of none."""


def reasons_of_next(beginnings: Sequence[EpochStart]) -> dict[int, str]:
    """Return by epoch the reason with which the next one began."""
    pairs = pairwise(beginnings)
    return {before.epoch: after.reason for before, after in pairs}


def orphaned_by(beginnings: Sequence[EpochStart]) -> list[tuple[OutboxId, OutboxId]]:
    """Return the ranges of entries that Redis forgot by the starts of later epochs, in order: after the first number,
    before the second."""
    found: list[tuple[OutboxId, OutboxId]] = []
    for beginning in reversed(beginnings):
        start = OutboxId(beginning.epoch, 0)
        if beginning.last is None or any(low < start < high for low, high in found):
            continue
        if beginning.last < start:
            found.append((beginning.last, start))
    return found[::-1]
