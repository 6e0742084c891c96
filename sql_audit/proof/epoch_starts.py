"""The first events of epochs, which are the unbroken histories of a queue in Redis. They show why an epoch began, and
which earlier entries Redis forgot.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rq_core.model.events import OutboxId


class EpochStart(NamedTuple):
    """The first event of an epoch: the reason why the epoch began, and the last entry before it."""

    epoch: int
    reason: str
    last: OutboxId | None
    """The last entry that Redis had when it began the epoch; None if Redis had no entry."""


def reasons_of_next(beginnings: Sequence[EpochStart]) -> dict[int, str]:
    """Return, by epoch, why Redis ended it: the reason why the following epoch began. The last epoch is left out."""
    pairs = pairwise(beginnings)
    return {before.epoch: after.reason for before, after in pairs}


def orphaned_by(beginnings: Sequence[EpochStart]) -> list[tuple[OutboxId, OutboxId]]:
    """Compute from the beginnings of epochs which entries Redis forgot. Return them as ranges, in order.

    A range is a pair (last surviving entry, first entry of the later epoch). Redis forgot all entries between the two.
    """
    found: list[tuple[OutboxId, OutboxId]] = []
    for beginning in reversed(beginnings):
        start = OutboxId(beginning.epoch, 0)
        if beginning.last is None or any(low < start < high for low, high in found):
            continue
        if beginning.last < start:
            found.append((beginning.last, start))
    return found[::-1]
