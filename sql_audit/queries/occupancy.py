"""Computes how long a cap was full or a rate exhausted, from the claims that it counted. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from rq_core.model.limits.scopes import is_rate
from sql_audit.store.storable_text import read_json

COUNTED_MAX: Final = 5_000
"""Maximum number of claims of one class of durations, or of jobs of one kind, that a query reads. If there are more,
the answer is a minimum ("at least")."""


def read_scopes(kept: str | None) -> list[list[Any]]:
    """Parse the JSON in ``job_attempt`` that has a claim's scopes (what caps and rates count) and their limits. Scopes
    that are not valid are left out.
    """
    found = read_json(kept, list)
    return [each for each in found if isinstance(each, list) and len(each) in (2, 4, 5)]


def limit_in(scopes: Iterable[Sequence[Any]], wanted: str) -> list[Any] | None:
    return next((list(limit) for scope, *limit in scopes if scope == wanted), None)


def cost_under(limit: Sequence[Any]) -> int:
    """Return how much a claim took from a rate. ``limit`` is (limit, window in ms, burst, cost).

    If ``limit`` has no cost, the claim took 1.
    """
    return int(limit[3]) if len(limit) > 3 else 1


def holds(scope: str, task: str | None, theirs: Iterable[Sequence[Any]]) -> bool:
    if scope == "queue" or (scope == f"task={task}" and not is_rate(scope)):
        return True
    return any(other == scope for other, *_ in theirs)


def ms_spent(
    claims: Sequence[tuple[int, int]],
    rate: Sequence[int],
    since_ms: int,
    until_ms: int,
    cost: int = 1,
) -> int:
    """Return for how many ms between ``since_ms`` and ``until_ms`` a rate had no room for a claim of this ``cost``.

    ``claims`` are the times (Unix ms) and costs of the claims under the rate, in order, including some before
    ``since_ms``. ``rate`` is (limit, window in ms, burst). The generic cell rate algorithm is used, as in scopes.lua.
    """
    most, window_ms, burst = rate[:3]
    if not most:
        return until_ms - since_ms
    window_us = window_ms * 1000
    slack_us = (burst - min(cost, burst)) * window_us // most
    spent, arrival_us = 0, 0
    for (at_ms, takes), (following, _) in pairwise((*claims, (until_ms, 0))):
        arrival_us = max(arrival_us, at_ms * 1000) + math.ceil(takes * window_us / most)
        resumes_ms = math.ceil((arrival_us - slack_us) / 1000)
        spent += max(0, min(following, resumes_ms, until_ms) - max(at_ms, since_ms))
    return spent


def ms_full(held: Sequence[tuple[int, int | None]], cap: int, since_ms: int, until_ms: int) -> int:
    """Return for how many ms between ``since_ms`` and ``until_ms`` a cap was full: at least ``cap`` claims held its
    scope.

    ``held`` are pairs of (begin, end) of claims in Unix ms. An end of None means that the claim is still in force.
    """
    changes = []
    for begin, end in held:
        changes.append((max(begin, since_ms), 1))
        changes.append((min(until_ms if end is None else end, until_ms), -1))
    changes.sort()
    full, holders, before = 0, 0, since_ms
    for at_ms, change in changes:
        if holders >= cap:
            full += at_ms - before
        before = at_ms
        holders += change
    if holders >= cap:
        full += until_ms - before
    return full
