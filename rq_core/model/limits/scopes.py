"""Scopes and lanes as text, as Redis, events and the command line have them.

A *scope* is a group of jobs that a cap or a rate counts: ``queue``, ``task=send``, or one value of a family of keys,
such as ``tenant=acme``. Its *family* is the text before the ``=``. The family of a rate also names its window:
``tenant@60s=acme``. If the rate counts a unit in place of jobs, the family also names the unit:
``ask.model@60s:tokens=gpt``.

A *lane* is the waiting line of the ready jobs with the same priority and scopes: ``2+task=send+tenant=acme``.

    >>> lane_name(2, ["tenant=acme", "task=send"])
    '2+task=send+tenant=acme'
    >>> scope("tenant", "a b")
    'tenant=a%20b'
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

from rq_core.model.keys import NAME_PATTERN

KEY_MAX: Final = 256
"""Maximum number of characters of a key's value, percent-encoded."""


QUEUE: Final = "queue"
"""The scope of a queue's own cap."""
TASK: Final = "task"
FAIR: Final = "fair"
WEIGHT: Final = "weight"
TICK: Final = "tick"
"""The first part of the name of a schedule's scope. The scope's cap lets only one job of the schedule run at a time."""
RESERVED: Final = frozenset({QUEUE, TASK, FAIR, WEIGHT, TICK})
"""Reserved names of families, the part of a scope's name before the ``=``. Caps and rates of users must not have these
names."""

UNIT_PATTERN: Final = r"[A-Za-z_][A-Za-z0-9_]{0,31}"
"""The pattern of the name of a unit."""
FAMILY_PATTERN: Final = NAME_PATTERN + rf"(?:@[0-9.]{{1,12}}s(?::{UNIT_PATTERN})?)?"
_ESCAPED: Final = r"(?!.*%(?![0-9A-F]{2}))"
"""A look-ahead for regular expressions. It rejects a text with a percent sign that two hex digits do not follow:
:func:`encode_key` writes no such text."""
SCOPE_PATTERN: Final = rf"{FAMILY_PATTERN}(?:={_ESCAPED}[A-Za-z0-9_.:~%-]{{0,{KEY_MAX}}})?"
_SCOPE = re.compile(SCOPE_PATTERN)


def encode_key(value: str) -> str:
    """Return the value of a key in the form that names of scopes contain: percent-encoded, without separators."""
    return quote(value, safe="-_.:~")


def scope(family: str, value: str) -> str:
    """Return the name of a scope, such as ``tenant=acme``, from its family and the value of its key."""
    return f"{family}={encode_key(value)}"


def family_of(scope_name: str) -> str:
    """Return the family of a scope, such as ``tenant`` for ``tenant=acme``. The name of a family is returned
    unchanged.
    """
    return scope_name.partition("=")[0]


def is_rate(scope_name: str) -> bool:
    """Return whether a scope belongs to a rate. The name of a rate's scope contains the rate's window."""
    return "@" in family_of(scope_name)


def unit_of(scope_name: str) -> str | None:
    """Return the unit that a scope's rate counts, such as tokens; None for a cap, and for a rate that counts jobs."""
    _, at, window = family_of(scope_name).partition("@")
    return window.partition(":")[2] or None if at else None


def is_counted(scope_name: str) -> bool:
    """Return whether the key ``holders`` lists the claimed jobs of a scope. It does for caps, but not for rates and
    fairness."""
    return not is_rate(scope_name) and family_of(scope_name) != FAIR


def is_scope(text: str) -> bool:
    """Return whether a text is a valid name of a scope, such as ``tenant=acme``, or of a family of scopes, such as
    ``tenant``.
    """
    return _SCOPE.fullmatch(text) is not None


def canonical(scopes: Iterable[str]) -> list[str]:
    """Return scopes without repetitions, in their fixed order: the task's scope first, then the others by name."""
    return sorted(set(scopes), key=lambda s: (not s.startswith("task="), s))


def lane_name(rank: int, scopes: Iterable[str]) -> str:
    """Return the name of the lane (the waiting line) of jobs with this priority (0 critical to 3 low) and these scopes;
    an empty text without scopes.
    """
    ordered = canonical(scopes)
    return "+".join((str(rank), *ordered)) if ordered else ""


def scopes_of(lane: str) -> tuple[str, ...]:
    """Return the scopes in the name of a lane (the waiting line of jobs with the same priority and scopes), in order.
    The empty name has no scopes.
    """
    return tuple(lane.split("+")[1:])


RANK: Final = 10**15
"""In the sorted set ``open``, the scores of the lanes (waiting lines of jobs) of the priority N begin at N times this
number."""
