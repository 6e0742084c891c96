"""Scopes, lanes and limits as text: the form that they have in Redis, in events and on the command line.

A *scope* is what a cap or a rate counts: ``queue``, ``task=send``, or one value of a family of keys, ``tenant=acme``.
Its *family* is what stands before the ``=``. A rate's family is named with its window: ``tenant@60s=acme``.

A *lane* is where jobs wait that have the same priority and the same scopes: ``2+task=send+tenant=acme``.

A *limit* is ``10`` (a cap), ``none`` (no cap), or ``100/60000ms/1`` (a rate: 100 per 60 s, 1 at once).

    >>> lane_name(2, ["tenant=acme", "task=send"])
    '2+task=send+tenant=acme'
    >>> scope("tenant", "a b")
    'tenant=a%20b'
    >>> Limit.parse("100/60000ms/5")
    Limit(most=100, window_ms=60000, burst=5)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

from rq_core.errors import InvalidOption
from rq_core.model.keys import NAME_PATTERN

KEY_MAX: Final = 256
"""Most characters of a key's value, percent-encoded."""

CAP_MAX: Final = 1_000_000_000

DECLARED: Final = "code"
"""In the place of a limit, in a change: the one that code declares."""

QUEUE: Final = "queue"
"""The scope of a queue's own cap."""
TASK: Final = "task"
FAIR: Final = "fair"
WEIGHT: Final = "weight"
RESERVED: Final = frozenset({QUEUE, TASK, FAIR, WEIGHT})
"""Families that no key may be named after."""

FAMILY_PATTERN: Final = NAME_PATTERN + r"(?:@[0-9.]{1,12}s)?"
_ESCAPED: Final = r"(?!.*%(?![0-9A-F]{2}))"
"""What follows has no percent sign but those of :func:`encode_key`."""
SCOPE_PATTERN: Final = rf"{FAMILY_PATTERN}(?:={_ESCAPED}[A-Za-z0-9_.:~%-]{{0,{KEY_MAX}}})?"
_SCOPE = re.compile(SCOPE_PATTERN)
_RATE = re.compile(r"(\d{1,10})/(\d{1,12})ms/(\d{1,10})")


def encode_key(value: str) -> str:
    """A key's value as it stands in a scope: percent-encoded, so that it has no separators."""
    return quote(value, safe="-_.:~")


def scope(family: str, value: str) -> str:
    """The scope of one value of a family."""
    return f"{family}={encode_key(value)}"


def family_of(scope_name: str) -> str:
    """The family of a scope; a family is its own."""
    return scope_name.partition("=")[0]


def is_rate(scope_name: str) -> bool:
    """Whether the scope is that of a rate, named with its window."""
    return "@" in family_of(scope_name)


def is_counted(scope_name: str) -> bool:
    """Whether claimed jobs of this scope are kept in ``holders``."""
    return not is_rate(scope_name) and family_of(scope_name) != FAIR


def is_scope(text: str) -> bool:
    """Whether the text can be a scope, or a family of scopes."""
    return _SCOPE.fullmatch(text) is not None


def canonical(scopes: Iterable[str]) -> list[str]:
    """Scopes in their fixed order, each once: the task's first, then the others by name."""
    return sorted(set(scopes), key=lambda s: (not s.startswith("task="), s))


def lane_name(rank: int, scopes: Iterable[str]) -> str:
    """The lane of jobs of this priority (0 critical to 3 low) and these scopes; empty without scopes."""
    ordered = canonical(scopes)
    return "+".join((str(rank), *ordered)) if ordered else ""


def scopes_of(lane: str) -> tuple[str, ...]:
    """The scopes of a lane, in its order; none of the empty one."""
    return tuple(lane.split("+")[1:])


class Limit(NamedTuple):
    """How much a scope takes: ``most`` at once (None: any number), or per window if it is a rate."""

    most: int | None
    window_ms: int | None = None
    burst: int = 1
    """Of a rate: how many may follow each other without a pause."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a limit. Raises ValueError for what is none."""
        if text == "none":
            return cls(None)
        rate = _RATE.fullmatch(text)
        if rate and int(rate[2]) and int(rate[3]):
            return cls(*map(int, rate.groups()))
        if not re.fullmatch(r"\d{1,10}", text):
            raise ValueError(text)
        return cls(int(text))

    def __str__(self) -> str:
        if self.most is None:
            return "none"
        if self.window_ms is None:
            return str(self.most)
        return f"{self.most}/{self.window_ms}ms/{self.burst}"


class CapEntry(NamedTuple):
    """A field of ``caps``: a limit, its version, and whether it came from code or from a person."""

    limit: Limit
    version: int
    source: str
    """code or live."""
    was: tuple[str, ...] = ()
    """Limits that code declared before; code cannot bring them back."""
    declared: Limit | None = None
    """What code declares, if a live limit stands in its place."""
    by: str | None = None
    """Who set a live limit."""
    at_ms: int | None = None
    """When (Unix ms)."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an entry as cap.lua writes it. Raises ValueError."""
        head, *rest = text.split()
        facts = dict(part.partition("=")[::2] for part in rest)
        was, declared, at_ms = map(facts.get, ("was", "code", "at"))
        return cls(
            Limit.parse(head),
            int(facts["version"]),
            facts["from"],
            tuple(was.split(",")) if was else (),
            Limit.parse(declared) if declared else None,
            facts.get("by"),
            int(at_ms) if at_ms else None,
        )


def full_rules(rules: Iterable[tuple[str, str | int]]) -> str:
    """What happens to a job whose scopes are full, as enqueue.lua takes it.

    Each rule is ("discard" or "reject", scope or "scope|cap in code"), or ("most", how many may wait in its lane).
    """
    return " ".join(f"{what}|{value}" for what, value in rules)


class ScopeStatus(NamedTuple):
    """One scope of a queue, as `rq-core caps` shows it."""

    scope: str
    limit: Limit
    version: int
    """0 if nothing is stored for it or its family."""
    source: str
    """code, live, family (its family's limit holds), or none."""
    holders: int
    waiting: int
    """Jobs in lanes that are blocked on this scope; for the queue, all that are ready while it is full."""
    oldest_wait_ms: int | None
    resumes_ms: int | None = None
    """Of a rate that is spent: when it goes on (Unix ms); of a family of rates, when the first of its keys does."""
    partial: bool = False
    """Whether more wait than were counted."""
    set_by: str | None = None
    """Who set a live limit, and when (Unix ms)."""
    set_at_ms: int | None = None
    declared: Limit | None = None
    """What code declares in the place of a live limit."""


def check_limit(option: str, value: Any, *, minimum: int = 0) -> int:
    """Return ``value`` if it can be a cap. Raises InvalidOption."""
    if type(value) is not int or not minimum <= value <= CAP_MAX:
        raise InvalidOption(
            option=option, value=value, must=f"must be a whole number from {minimum} to {CAP_MAX:,}"
        )
    return value
