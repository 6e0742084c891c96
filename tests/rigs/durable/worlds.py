"""The worlds of durable jobs, and the bugs that can be planted in each world.

See ``scripts/prove/model --states``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import click

from tests.rigs.durable.checker import Verdict, World, explore
from tests.rigs.durable.emptying import Emptying
from tests.rigs.durable.waits import SLEEP, STEP, TIMED, WAIT, Waits

MOST: Final = 2_000_000

Planted = frozenset[str]


@dataclass(frozen=True)
class Kind:
    """A world, and the bugs that can be planted in it, by name."""

    make: Callable[[Planted], World[Any]]
    bugs: tuple[str, ...]

    def verdict(self, *planted: str) -> Verdict:
        """Search the world with these bugs planted, and return the result."""
        return explore(self.make(frozenset(planted)), most=MOST)


OF_WAITS: Final = (
    "park does not look into the box",
    "a running job gets no message",
    "signal does not wake",
    "save without the fence",
    "park without the fence",
    "take leaves the message",
    "take saves in a second call",
    "keys are not remembered",
    "a time that is over wins against a message",
)
OF_SLEEPS: Final = ("a retry begins a sleep anew", "a time that is over empties the mail")
OF_FAILOVERS: Final = ("nothing that Redis forgot is put back",)
OF_BOXES: Final = (
    "the end forgets the box",
    "tidy asks for the id's box",
    "the duty is closed before the box is empty",
    "tidy does not close the duty",
    "load without the fence",
)

SHORT: Final[dict[str, Kind]] = {
    "a step and two waits": Kind(
        lambda planted: Waits(planted, program=(STEP, WAIT, TIMED)), OF_WAITS
    ),
    "a sleep and a wait": Kind(
        lambda planted: Waits(planted, program=(SLEEP, WAIT), signals=("k1",)), OF_SLEEPS
    ),
    "two waits, and a failover": Kind(
        lambda planted: Waits(planted, fails_over=True, program=(WAIT, TIMED), signals=("k1",)),
        OF_FAILOVERS,
    ),
    "a box is emptied": Kind(lambda planted: Emptying(planted), OF_BOXES),
}
"""The worlds that the tests search."""

WORLDS: Final[dict[str, Kind]] = {
    **SHORT,
    "a step, two waits and a sleep": Kind(lambda planted: Waits(planted), (*OF_WAITS, *OF_SLEEPS)),
    "a step and two waits, and a failover": Kind(
        lambda planted: Waits(planted, fails_over=True, program=(STEP, WAIT, TIMED)), OF_FAILOVERS
    ),
}


def main() -> int:
    """Search each world without a bug, and then with each of its bugs.

    Return 1 if a world breaks a promise, or if the search misses a bug.
    """
    fell_short = False
    for name, kind in WORLDS.items():
        verdict = kind.verdict()
        fell_short = fell_short or bool(verdict.problem)
        click.echo(f"{name}: {verdict.states:,} states: {verdict.problem or 'holds'}")
        for bug in kind.bugs:
            found = kind.verdict(bug)
            fell_short = fell_short or not found.problem
            click.echo(
                f"    {bug}: {'found' if found.problem else 'NOT FOUND'}: {found.problem[:100]}"
            )
    return int(fell_short)


if __name__ == "__main__":
    sys.exit(main())
