"""Reads the use of rates and breakers from the keys ``rates`` and ``scheduled``: how much of a rate is used up, and
until when a scope is paused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rq_core.model.keys import QueueKeys
from rq_core.model.limits.breakers import is_breaker
from rq_core.model.limits.limit import Limit
from rq_core.model.limits.scopes import unit_of
from rq_core.protocol.engine.plan import pairs_of
from rq_core.protocol.reads.steps import PAGE, Command, Steps

READ_MAX: Final = 10 * PAGE
"""Approximate number of fields of the key ``rates`` that are read to find paused scopes."""


def resume_of(scope: str, stored: Any, spent: str | None, limit: Limit, now_ms: int) -> int | None:
    """Return the time (Unix ms) at which a used-up rate admits jobs again; None: no such time is stored.

    ``stored`` is the rate's score in the key ``scheduled``: the stored time. ``spent`` is its value in the key
    ``rates``. If the stored time is later than the limit allows, the latest allowed time is returned: the time was
    stored before the clock was set back, or under a slower limit. A rate that counts a unit, or that is paused, has no
    latest time.
    """
    if stored is None:
        return None
    has_bound = unit_of(scope) is None and (spent is None or " until=" not in spent)
    latest = limit.latest_resume_ms(now_ms) if has_bound else None
    return int(float(stored)) if latest is None else min(int(float(stored)), latest)


def resumes_in(keys: QueueKeys, scopes: Sequence[str]) -> list[Command]:
    """Return the commands that read the times at which exhausted rates admit jobs again."""
    members = [f"rate|{scope}" for scope in scopes]
    return [
        ["ZMSCORE", keys("scheduled"), *members[at : at + PAGE]]
        for at in range(0, len(members), PAGE)
    ]


def spent_in(keys: QueueKeys, scopes: Sequence[str]) -> list[Command]:
    """Return the commands that read how much of these rates is used up, from the key ``rates``."""
    return [["HMGET", keys("rates"), *scopes[at : at + PAGE]] for at in range(0, len(scopes), PAGE)]


def paused_in(keys: QueueKeys, most: int) -> Steps[list[str]]:
    """Return at most ``most`` scopes that are paused, or whose breaker has counted failures.

    Some may be missing if the key ``rates`` has more than READ_MAX fields.
    """
    found: set[str] = set()
    cursor, read = "", 0
    while cursor != "0" and len(found) < most and read < READ_MAX:
        ((cursor, flat),) = yield [["HSCAN", keys("rates"), cursor or "0", "COUNT", PAGE]]
        cursor, pairs = str(cursor), pairs_of(flat)
        read += PAGE
        found |= {name for name, value in pairs.items() if is_breaker(name) or " until=" in value}
    return sorted(found)[:most]
