"""The states of the worlds of a parent that runs two children in another slot and waits for their ends."""

from __future__ import annotations

from typing import NamedTuple

CHILDREN = 2
ALL = range(CHILDREN)
ALIVE = "alive"
RESULTS = ("a", "b")
"""The results of a child: ``a``; or ``b`` if it ends after a failover of the children's slot."""
GONE = "gone"
"""The outcome of a child that Redis does not have."""
NONE = ("",) * CHILDREN
OVER = ("gone", "cancelled")
"""The states of a parent that has left Redis."""

Each = tuple[str, ...]
"""One text for each child."""
Children = tuple[tuple[tuple[int, int], str], ...]
"""The children in Redis: (life of the parent's box, index) and state."""


class Box(NamedTuple):
    """The entries that a parent has saved, in Redis or in the memory of a worker."""

    life: int = 0
    """The id of the box; 0: there is none."""
    plan: str = ""
    """The entry that enqueues the children: empty, ``begun`` or ``saved``."""
    items: Each = NONE
    """The saved results."""
    join: Each = ()
    """The saved outcomes of the children that did not succeed; empty: they are not saved."""


class Parent(NamedTuple):
    """The state of the parent in Redis."""

    state: str = "ready"
    fence: int = 0
    was_claimed: bool = False
    box: Box = Box()
    mail: tuple[bool, ...] = (False,) * CHILDREN
    """For each child, whether a signal of its end waits. Two signals of a child count as one."""
    waits: int = -1
    """The child for whose end the parent has begun to wait."""
    told: int = 0
    """The number of signals that came. Only a planted bug counts them."""


class Worker(NamedTuple):
    """A worker that runs the parent, or that has lost the parent and does not know it yet."""

    fence: int
    does: str
    box: Box = Box()
    found: Each = NONE
    """The outcomes that this look has found."""
    at: int = 0
    """The child to which the call belongs."""
    is_first: bool = False
    """True from the begin of the entry that enqueues the children until its end: no earlier run has enqueued any."""


class Teller(NamedTuple):
    """A worker that has ended a child, and signals that to the parent."""

    life: int
    at: int
    does: str


class Operator(NamedTuple):
    """An operator who cancels or requeues the family."""

    verb: str
    does: str
    chosen: tuple[tuple[int, int], ...] = ()
    moved: bool = False
    """True if a claim of the parent has ended since the operator read its children."""


class Budget(NamedTuple):
    """The number of failures of each kind that may still happen."""

    crashes: int = 0
    leases: int = 0
    kills: int = 0
    """Kills of workers that are about to signal the end of a child."""
    deaths: int = 0
    """Deaths of children."""
    single: int = 0
    """Requeues of a dead child by its own id."""
    cancels: int = 0
    """Cancels of a child by its own id."""
    families: int = 0
    """Cancels of the whole family."""
    requeues: int = 0
    """Requeues of the whole family."""
    forgets: int = 0
    """Times that Redis forgets the children that have ended, a day after their ends."""
    parent_fails: int = 0
    children_fail: int = 0


class History(NamedTuple):
    """One state of the world."""

    parent: Parent
    children: Children
    workers: tuple[Worker, ...]
    tellers: tuple[Teller, ...]
    operator: Operator | None
    budget: Budget
    seen: Each = ()
    """The items that the first run has returned."""
    past: Parent | None = None
    """The earlier state to which a failover of the parent's slot would go back."""
    past_children: Children = ()
    kept: int = 0
    """The life that a worker knows whose claim has survived a failover."""
    cut: bool = False
    """Whether the parent was cancelled after one run had begun to enqueue children, and before another run did so
    again. Then no process knows the queues of the children, and some children may go on."""
    log: Children = ()
    """The children that a failover took, as the log knows them, until ``audit restore`` puts them back."""


def put(each: Each, at: int, text: str) -> Each:
    """Return the texts, with one of them replaced."""
    return (*each[:at], text, *each[at + 1 :])


def with_child(children: Children, life: int, at: int, state: str) -> Children:
    """Return the children, with the state of one of them replaced or added."""
    return tuple(sorted({**dict(children), (life, at): state}.items()))


def moved(parent: Parent, state: str) -> Parent:
    """Return the parent in another state, without its claim. What no later call asks for is left out, so that alike
    histories are one state."""
    if state in OVER:
        return Parent(state, 0, True)
    return parent._replace(state=state, fence=0, waits=parent.waits if state == "parked" else -1)
