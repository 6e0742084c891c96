"""Chooses which actor continues next.

Many races need an actor that waits for very many steps. A uniform choice rarely lets an actor wait for so long.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol


class Policy(Protocol):
    """A rule that chooses one of the actors that can continue."""

    name: str

    def choose(self, names: Sequence[str], step: int, rng: random.Random, /) -> int:
        """Return the index in ``names`` of the chosen actor."""


class Uniform:
    """Chooses each actor with the same probability."""

    name = "uniform"

    def choose(self, names: Sequence[str], _step: int, rng: random.Random) -> int:
        return rng.randrange(len(names))


class Pct:
    """Probabilistic concurrency testing (Burckhardt and others, 2010).

    Each actor has a random priority. The actor with the highest priority continues until it waits. At a few random
    steps this actor gets the lowest priority instead. With n actors and k steps, a bug that needs d orderings is found
    with a probability of at least 1/(n·k^(d-1)). One of ten choices is uniform, since an actor that polls would never
    wait.
    """

    name = "pct"

    def __init__(self, rng: random.Random, steps: int) -> None:
        self._changes = set(rng.sample(range(steps), rng.randrange(3, 25)))
        self._ranks: dict[str, float] = {}
        self._lowest = 0.0

    def choose(self, names: Sequence[str], step: int, rng: random.Random) -> int:
        for name in names:
            if name not in self._ranks:
                self._ranks[name] = rng.random()
        if rng.random() < 0.1:
            return rng.randrange(len(names))
        at = max(range(len(names)), key=lambda n: self._ranks[names[n]])
        if step in self._changes:
            self._lowest -= 1.0
            self._ranks[names[at]] = self._lowest
            at = max(range(len(names)), key=lambda n: self._ranks[names[n]])
        return at


def policy_of(rng: random.Random, steps: int) -> Policy:
    """Return a random policy for a run of this number of steps."""
    return Uniform() if rng.random() < 0.4 else Pct(rng, steps)
