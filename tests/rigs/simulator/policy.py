"""Who goes next. Choosing uniformly rarely holds one actor back for long, which many races need."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol


class Policy(Protocol):
    """Chooses among those who could go on."""

    name: str

    def choose(self, names: Sequence[str], step: int, rng: random.Random, /) -> int:
        """The place of the chosen one in ``names``."""


class Uniform:
    """Each with the same chance."""

    name = "uniform"

    def choose(self, names: Sequence[str], _step: int, rng: random.Random) -> int:
        return rng.randrange(len(names))


class Pct:
    """Probabilistic concurrency testing (Burckhardt and others, 2010).

    Each has a priority, and the highest goes on until it waits; at a few moments drawn beforehand the one who is
    about to go falls behind all others. A bug that needs d orderings is found with a chance of at least 1/(n·k^(d-1)),
    n actors and k steps. Now and then the choice is free, since actors who look again and again would never wait.
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
    """The policy that a seed draws."""
    return Uniform() if rng.random() < 0.4 else Pct(rng, steps)
