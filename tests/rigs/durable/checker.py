"""Visits all states of a world, and judges each state."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)


class Unsafe(Exception):
    """Raised if a state of a world, or a call in it, breaks a promise."""


class World(Protocol[State]):
    """A model: its first state, the steps from each state, and the promises of each state."""

    def start(self) -> State:
        """Return the first state."""
        ...

    def is_end(self, state: State, /) -> bool:
        """Return whether this state may be the last state."""
        ...

    def steps(self, state: State, /) -> Iterator[tuple[bool, State]]:
        """Yield each next state as (is_fair, state). ``is_fair`` is false if the step is a failure."""
        ...

    def judge(self, state: State, /) -> None:
        """Raise Unsafe if the state breaks a promise."""
        ...


@dataclass(frozen=True)
class Verdict:
    """The result of a search through all states of a world."""

    states: int
    problem: str = ""
    """The problem that was found, or an empty text if the world keeps its promises."""


def explore(world: World[State], *, most: int) -> Verdict:
    """Visit all states of a world, breadth first, and judge each state.

    An end must be reachable from each state without another failure. So a lost wake-up is found. More than ``most``
    states are a problem, too.
    """
    first = world.start()
    numbers = {first: 0}
    before: list[list[int]] = [[]]
    todo = deque([first])
    ends: list[int] = []
    try:
        while todo:
            state = todo.popleft()
            number = numbers[state]
            world.judge(state)
            if world.is_end(state):
                ends.append(number)
            for is_fair, following in world.steps(state):
                place = numbers.get(following)
                if place is None:
                    place = numbers[following] = len(numbers)
                    before.append([])
                    todo.append(following)
                    if place >= most:
                        return Verdict(place, f"more than {most} states")
                if is_fair:
                    before[place].append(number)
    except Unsafe as unsafe:
        return Verdict(len(numbers), f"unsafe: {unsafe}")
    return Verdict(len(numbers), _stuck(numbers, before, ends))


def _stuck(numbers: dict[State, int], before: list[list[int]], ends: list[int]) -> str:
    leading = set(ends)
    todo = deque(ends)
    while todo:
        for number in before[todo.popleft()]:
            if number not in leading:
                leading.add(number)
                todo.append(number)
    stuck = [state for state, number in numbers.items() if number not in leading]
    return f"stuck in {len(stuck)} states, first in {stuck[0]}" if stuck else ""


class Searched(Generic[State]):
    """A world into which bugs can be planted, by their names."""

    def __init__(self, planted: frozenset[str] = frozenset()) -> None:
        self.planted = planted

    def has(self, bug: str) -> bool:
        """Return whether the bug with this name is planted."""
        return bug in self.planted
