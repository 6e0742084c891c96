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
from tests.rigs.durable.family import Budget
from tests.rigs.durable.joins import Joins
from tests.rigs.durable.waits import SLEEP, STEP, TIMED, WAIT, Waits

MOST: Final = 8_000_000

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
OF_PARENTS_FAILOVERS: Final = (
    *OF_FAILOVERS,
    "a park ends the claim although entries are lost",
)
OF_MOVED_BOXES: Final = (
    "a box that a signal began is not moved",
    "a moved box leaves its mail",
)
OF_BOXES: Final = (
    "the end forgets the box",
    "tidy asks for the id's box",
    "the duty is closed before the box is empty",
    "tidy does not close the duty",
    "load without the fence",
)

OF_SIGNALS: Final = (
    "park does not look into the box",
    "signal does not wake",
    "the look reads forwards",
    "the first child of a call gives the signal",
    "the signal is sent before the end",
    "the parent counts the signals",
    "a join before the last child",
    "a result is saved without its index",
)
OF_JOINS: Final = (
    "a wait has no time",
    "children are enqueued before the box has its life",
    "each claim has children of its own",
    "results are not saved",
    "the outcomes of failed children are not saved",
)
OF_CANCELLED_CHILDREN: Final = (
    "a later run enqueues without a look",
    "a child that was alive is accepted",
)
OF_STALE_PARENTS: Final = (
    "save without the fence",
    "park without the fence",
    "an id that has succeeded is not remembered",
)
OF_REQUEUES: Final = (
    "a requeue leaves the dead children",
    "the parent is requeued before its children",
    "outcomes are saved although too few succeeded",
)
OF_CANCELS: Final = (
    "a cancel leaves the children",
    "a cancel does not ask whether a claim ended",
    "the worker of a cancelled parent cancels nobody",
    "children that are being enqueued are left out",
)
OF_STALE_CANCELS: Final = (
    "a stale worker leaves the children",
    "a cancel does not ask whether a claim ended",
)
OF_LOST_CHILDREN: Final = (
    "nobody restores the lost children",
    "a child that is gone counts as a success",
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
    "a step and a wait, and a failover that loses the box": Kind(
        lambda planted: Waits(planted, fails_over=True, program=(STEP, WAIT), signals=("k1", "k2")),
        OF_MOVED_BOXES,
    ),
    "a box is emptied": Kind(lambda planted: Emptying(planted), OF_BOXES),
    "a join by signals alone": Kind(
        lambda planted: Joins(planted, Budget(crashes=1, deaths=1), needed=1, looks=False),
        OF_SIGNALS,
    ),
    "a join, and a killed worker": Kind(
        lambda planted: Joins(
            planted, Budget(crashes=1, deaths=1, single=1, forgets=1), needed=1, signals=False
        ),
        OF_JOINS,
    ),
    "a join, and a stale worker": Kind(
        lambda planted: Joins(
            planted, Budget(leases=1, deaths=1, single=1), needed=1, signals=False
        ),
        OF_STALE_PARENTS,
    ),
    "a join with a cancelled child": Kind(
        lambda planted: Joins(planted, Budget(crashes=1, cancels=1), needed=1, signals=False),
        OF_CANCELLED_CHILDREN,
    ),
    "a family is requeued": Kind(
        lambda planted: Joins(planted, Budget(deaths=1, requeues=1), signals=False), OF_REQUEUES
    ),
    "a family is cancelled": Kind(
        lambda planted: Joins(planted, Budget(families=1), signals=False), OF_CANCELS
    ),
    "a family is cancelled, and a stale worker": Kind(
        lambda planted: Joins(planted, Budget(families=1, leases=1), needed=1, signals=False),
        OF_STALE_CANCELS,
    ),
    "a join, and a failover of the parent": Kind(
        lambda planted: Joins(planted, Budget(parent_fails=1), signals=False), OF_PARENTS_FAILOVERS
    ),
    "a join, and a failover of the children": Kind(
        lambda planted: Joins(planted, Budget(children_fail=1, requeues=1), signals=False),
        OF_LOST_CHILDREN,
    ),
}
"""The worlds that the tests search."""

WORLDS: Final[dict[str, Kind]] = {
    **SHORT,
    "a join, with killed and stale workers": Kind(
        lambda planted: Joins(
            planted,
            Budget(crashes=1, leases=1, deaths=1, single=1, forgets=1),
            needed=1,
            signals=False,
        ),
        (*OF_JOINS, *OF_STALE_PARENTS),
    ),
    "a join with signals, and a stale worker": Kind(
        lambda planted: Joins(planted, Budget(leases=1, deaths=1, single=1), needed=1),
        OF_STALE_PARENTS,
    ),
    "a requeue with signals, and killed workers": Kind(
        lambda planted: Joins(planted, Budget(crashes=1, kills=1, deaths=1, requeues=1)),
        OF_REQUEUES,
    ),
    "a cancel with signals, and killed child workers": Kind(
        lambda planted: Joins(planted, Budget(families=1, deaths=1, kills=1), needed=1), OF_CANCELS
    ),
    "a cancel with signals, and a stale worker": Kind(
        lambda planted: Joins(planted, Budget(families=1, leases=1), needed=1),
        (*OF_CANCELS, *OF_STALE_CANCELS),
    ),
    "a join with signals, and a failover of the parent": Kind(
        lambda planted: Joins(planted, Budget(parent_fails=1)), OF_PARENTS_FAILOVERS
    ),
    "a join with signals, and a failover of the children": Kind(
        lambda planted: Joins(planted, Budget(children_fail=1, requeues=2, deaths=1)),
        OF_LOST_CHILDREN,
    ),
    "a join, and failovers of both": Kind(
        lambda planted: Joins(planted, Budget(parent_fails=1, children_fail=1), signals=False),
        OF_PARENTS_FAILOVERS,
    ),
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
