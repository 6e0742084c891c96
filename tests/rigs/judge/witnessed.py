"""Compares the runs that handlers recorded with the claims in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

Claim = TypeVar("Claim", tuple[str, int], tuple[str, str])
"""A job and its claim. The claim is given by its number or by its fence."""


class Runs(Generic[Claim]):
    """The numbers of times that a handler began and completed in each claim."""

    def __init__(self, began: Iterable[Claim], ended: Iterable[Claim]) -> None:
        self.began: Counter[Claim] = Counter(began)
        self.ended: Counter[Claim] = Counter(ended)

    def unlogged(self, claimed: AbstractSet[Claim]) -> list[Claim]:
        """Return the claims in which a handler ran, but which the log does not have."""
        return sorted(claim for claim in self.began | self.ended if claim not in claimed)

    def begun_again(self) -> list[Claim]:
        """Return the claims in which a handler began more than once."""
        return sorted(claim for claim, times in self.began.items() if times > 1)

    def hollow(self, succeeded: AbstractSet[Claim]) -> list[Claim]:
        """Return the claims that succeeded according to the log, but in which no handler completed."""
        return sorted(succeeded - set(self.ended))
