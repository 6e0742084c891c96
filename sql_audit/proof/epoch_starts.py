"""The first events of epochs. They show why an epoch began, and which earlier entries Redis forgot."""

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
    """The last entry that Redis knew when the epoch began; None if Redis knew no entry."""


def reasons_of_next(beginnings: Sequence[EpochStart]) -> dict[int, str]:
    """Return, by epoch, the reason why the following epoch began. The last epoch is left out."""
    pairs = pairwise(beginnings)
    return {before.epoch: after.reason for before, after in pairs}


def orphaned_by(beginnings: Sequence[EpochStart]) -> list[tuple[OutboxId, OutboxId]]:
    """Return the ranges of entries that Redis forgot, in order, computed from the beginnings of epochs.

    A range is a pair (last surviving entry, first entry of the later epoch). All entries between the two are orphaned.
    """
    found: list[tuple[OutboxId, OutboxId]] = []
    for beginning in reversed(beginnings):
        start = OutboxId(beginning.epoch, 0)
        if beginning.last is None or any(low < start < high for low, high in found):
            continue
        if beginning.last < start:
            found.append((beginning.last, start))
    return found[::-1]
