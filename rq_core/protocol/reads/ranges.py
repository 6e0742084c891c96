"""Reads many ranges of a sorted set in one command. All members of the set have the same score.

For example, the numbers of running jobs of some scopes:

    first = yield from ask(held=within(keys("holders"), map(of_scope, scopes)))
    held = answers(first.held)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from rq_core.model.keys import QueueKeys
from rq_core.model.limits.scopes import QUEUE
from rq_core.protocol.reads.steps import Command, Steps
from rq_core.scripts.plain import plain_text

RANGES_PAGE: Final = 250
"""Maximum number of ranges that one command reads. In a set of a million members, a server counts the members of this
number of ranges in about two ms."""
MEMBERS_PAGE: Final = 5_000
"""Maximum number of members that one command returns, unless a single range returns more."""
SCOPES_PAGE: Final = 1_000
"""Maximum number of scopes that one command finds."""


class Range(NamedTuple):
    """A range of the members of a sorted set, from ``low`` to ``high``, in the syntax of ZRANGEBYLEX."""

    low: str
    high: str
    most: int | None = None
    """Maximum number of members that are read, from the first member on; None: the members are only counted."""


def of_scope(scope: str, most: int | None = None) -> Range:
    """Return the range of a scope's members in the keys ``holders`` (running jobs) and ``blocked`` (lanes that wait).
    For a family, the range has the members of all scopes of the family.
    """
    if "=" in scope:
        return Range(f"[{scope}|", f"({scope}}}", most)
    return Range(f"[{scope}=", f"({scope}>", most)


def of_lane(lane: str, most: int | None = None) -> Range:
    """Return the range of a lane's jobs in the key ``waiting``. A lane has the waiting jobs of one priority and the
    same scopes.
    """
    return Range(f"[{lane}|", f"({lane}}}", most)


def within(index: str, ranges: Iterable[Range]) -> list[Command]:
    """Return the commands that read these ranges of the sorted set ``index``."""
    commands: list[Command] = []
    size = members = 0
    for low, high, most in ranges:
        if not commands or size == RANGES_PAGE or members + (most or 0) > MEMBERS_PAGE:
            commands.append(["EVAL_RO", plain_text("within"), 1, index])
            size = members = 0
        commands[-1] += [low, high, "" if most is None else most]
        size, members = size + 1, members + (most or 0)
    return commands


def answers(replies: Iterable[Sequence[Any]]) -> list[Any]:
    """Return one answer per range, from the replies to the commands of ``within``. An answer is the number of the
    range's members, or its first members.
    """
    return list(chain.from_iterable(replies))


def count_of_holders(keys: QueueKeys, scope: str) -> Command:
    """Return the command that counts the running jobs of a scope or a family. For the queue's own scope, it counts all
    running jobs."""
    if scope == QUEUE:
        return ["ZCARD", keys("leases")]
    return ["ZLEXCOUNT", keys("holders"), *of_scope(scope)[:2]]


def head_of_lane(keys: QueueKeys, lane: str) -> Command:
    """Return the command that reads the first job of a lane. A lane has the waiting jobs of one priority and the same
    scopes.
    """
    return ["ZRANGEBYLEX", keys("waiting"), *of_lane(lane)[:2], "LIMIT", 0, 1]


def job_of(member: str) -> str:
    """Return the job's id in a member of the key ``waiting`` or ``holders``."""
    return member.rpartition("|")[2]


def scopes_in(index: str, most: int, seen: set[str]) -> Steps[list[str]]:
    """Return at most ``most`` scopes that have members in the key ``index`` (``blocked`` or ``holders``), sorted.
    Scopes in ``seen`` are left out. Only the first member of each scope is read."""
    found: list[str] = []
    start, whole = "-", False
    while len(found) < most and not whole:
        count = min(SCOPES_PAGE, most + len(seen))
        (page,) = yield [["EVAL_RO", plain_text("scopes"), 1, index, start, count]]
        found += [scope for scope in page if scope not in seen]
        whole = len(page) < count
        start = f"[{page[-1]}}}" if page else ""
    return sorted(found[:most])
