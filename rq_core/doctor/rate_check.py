"""Finds the times that ``rates``, ``expiring`` and ``scheduled`` should have of each rate. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from rq_core.doctor.snapshot import View
from rq_core.model.limits import scopes
from rq_core.model.limits.limit import Spent, read_spent


def kept_rates(view: View) -> Iterator[tuple[str, str, int | None]]:
    """Yield the scope of each rate with its value in ``rates``, and the time (Unix ms) at which the rate may be
    forgotten; None: at any time.

    Each of the two implies the other. A rate that counts a unit may owe more than its burst, so its arrival time has no
    bound."""
    rates, marks = view.snapshot["rates"], view.snapshot["expiring"]
    spent = {mark.partition("|")[2] for mark in marks if mark.startswith("rate|")}
    for scope in filter(scopes.is_rate, {*rates, *spent}):
        value, mark, limit = rates.get(scope, ""), marks.get(f"rate|{scope}"), view.limit(scope)
        read = read_spent(value)
        if read is not None and (scopes.unit_of(scope) is not None or read.paused_ms is not None):
            yield scope, value, read.expires_ms
        elif scopes.unit_of(scope) is not None:
            if mark is not None:
                yield scope, str(Spent.at(mark, limit)), None
        elif value.isascii() and value.isdigit():
            furthest = None if view.latest_ms is None else limit.furthest_us(view.latest_ms)
            arrival_us = int(value) if furthest is None else min(int(value), furthest)
            yield scope, str(arrival_us), -(-arrival_us // 1000)
        elif mark is not None:
            yield scope, f"{mark * 1000:.0f}", None


def latest_resumes(view: View) -> Iterator[tuple[str, int]]:
    """Yield the member of ``scheduled`` of each rate whose time there is later than its limit and its pause allow, with
    the latest time (Unix ms) at which the rate may admit jobs again."""
    for member, at in view.snapshot["scheduled"].items():
        kind, _, scope = member.partition("|")
        has_bound = kind == "rate" and scopes.is_rate(scope) and scopes.unit_of(scope) is None
        if has_bound and view.latest_ms is not None:
            latest = view.limit(scope).latest_resume_ms(view.latest_ms)
            spent = read_spent(view.snapshot["rates"].get(scope, ""))
            if latest is not None and spent is not None:
                latest = max(latest, spent.paused_ms or 0)
            if latest is not None and at > latest:
                yield member, latest
