"""Computes how much of a rate is in use, and whether the scope of a rate or a breaker is open, paused, or probing
(after a pause, a single job tests it).

The limit of the scope and the scope's value in the key ``rates`` decide both.
"""

from __future__ import annotations

from typing import NamedTuple

from rq_core.model.limits.breakers import is_breaker, read_breaker
from rq_core.model.limits.limit import Limit, is_endless, read_spent
from rq_core.model.limits.scopes import unit_of


class ScopeUse(NamedTuple):
    """The state of a scope of a rate or a breaker: whether the scope is open, paused, or probing (after a pause, a
    single job tests it), and how much of a rate is in use.
    """

    standing: str = "open"
    """The scope's state. ``open``: jobs may begin as the limit allows. ``paused``: no job may begin. ``probing``: one
    job at a time may begin."""
    until_ms: int | None = None
    """Unix ms at which the pause ends or ended. None: the scope is open, or it is paused until an operator
    resumes it."""
    by: str | None = None
    """The operator who paused the scope."""
    probe: str | None = None
    """The id of the job that is the probe of a breaker's scope: the one job that may run after a pause."""
    failures: int = 0
    """Number of failures within the window of a breaker, if the breaker's scope is open."""
    in_use: int = 0
    """The use of a rate, rounded up: units, or jobs if the rate has no unit."""
    owes: int = 0
    """Units in use that exceed the burst of a rate with a unit. No job of the scope begins until they are
    free again."""


OPEN = ScopeUse()


def use_of(scope: str, value: str | None, limit: Limit, now_ms: int) -> ScopeUse:
    """Return the use of a scope. ``value`` is the scope's field in the key ``rates``, or None if there is no field."""
    if value is None or not limit.most or not limit.window_ms:
        return OPEN
    if is_breaker(scope):
        return _of_breaker(value, limit, now_ms)
    spent = read_spent(value)
    if spent is None and not (value.isascii() and value.isdigit()):
        return OPEN
    arrival_us = int(value) if spent is None else spent.arrival_us
    under = limit if spent is None else Limit.parse(spent.limit)
    ahead_us = max(0, arrival_us - now_ms * 1000)
    in_use = -(-ahead_us * (under.most or 0) // ((under.window_ms or 1) * 1000))
    owes = max(0, in_use - limit.burst) if unit_of(scope) else 0
    if spent is None or spent.paused_ms is None or spent.paused_ms <= now_ms:
        return ScopeUse(in_use=in_use, owes=owes)
    return ScopeUse("paused", _end(spent.paused_ms), spent.paused_by, in_use=in_use, owes=owes)


def _of_breaker(value: str, limit: Limit, now_ms: int) -> ScopeUse:
    entry = read_breaker(value)
    if entry is None:
        return OPEN
    since_ms = now_ms - (limit.window_ms or 0)
    failures = sum(at_ms > since_ms for at_ms in entry.failed)
    if entry.until_ms is None:
        return ScopeUse(failures=failures)
    return ScopeUse(entry.standing(now_ms), _end(entry.until_ms), entry.by, entry.probe)


def _end(until_ms: int) -> int | None:
    return None if is_endless(until_ms) else until_ms
