"""The beginnings of epochs, and what they show: the reason why each earlier epoch ended, and the entries that Redis
forgot.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rq_core.model.events import OutboxId


class EpochStart(NamedTuple):
    """The beginning of an epoch, by the epoch's first event: its reason, and the last entry before it."""

    epoch: int
    reason: str
    last: OutboxId | None
    """The last entry before the epoch that Redis knew; None if Redis knew no entry."""


def reasons_of_next(beginnings: Sequence[EpochStart]) -> dict[int, str]:
    """Return, for each epoch except the last, the reason with which the next epoch began."""
    pairs = pairwise(beginnings)
    return {before.epoch: after.reason for before, after in pairs}


def orphaned_by(beginnings: Sequence[EpochStart]) -> list[tuple[OutboxId, OutboxId]]:
    """Return the ranges of entries that Redis forgot, by the beginnings of later epochs, in order. A range is a pair of
    numbers; it has all entries between the two numbers."""
    found: list[tuple[OutboxId, OutboxId]] = []
    for beginning in reversed(beginnings):
        start = OutboxId(beginning.epoch, 0)
        if beginning.last is None or any(low < start < high for low, high in found):
            continue
        if beginning.last < start:
            found.append((beginning.last, start))
    return found[::-1]
