"""Derives the contents that the keys ``rates``, ``expiring`` and ``scheduled`` should have for each rate limit and
breaker. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from rq_core.doctor.snapshot import View
from rq_core.model.lib.text import counted
from rq_core.model.limits import scopes
from rq_core.model.limits.breakers import KEPT_MS, LOOK_MS, BreakerEntry, is_breaker, read_breaker
from rq_core.model.limits.limit import LATEST_MS, PAUSE_MAX_MS, Limit, Spent, read_spent
from rq_core.model.table.machine import CLAIMED_STATES


def kept_rates(view: View) -> Iterator[tuple[str, str, int | None]]:
    """Yield (scope, value, time) for each rate limit and breaker: the value that ``rates`` should have, and the time
    (Unix ms) after which the value may be removed.

    None as the time: any time is right. A lost value is derived from the time, and a lost time from the value. A rate
    that counts costs may owe more than its burst, so its value has no upper bound.
    """
    rates, marks = view.snapshot["rates"], view.snapshot["expiring"]
    spent = {mark.partition("|")[2] for mark in marks if mark.startswith("rate|")}
    for scope in filter(scopes.is_rate, {*rates, *spent, *view.log.breakers.scopes}):
        value, mark, limit = rates.get(scope, ""), marks.get(f"rate|{scope}"), view.limit(scope)
        read = read_spent(value)
        if mark is not None and not 0 <= mark <= LATEST_MS:
            mark = view.latest_ms  # No rate is in use for that long.
        if is_breaker(scope):
            if (entry := _breaker_entry(view, scope)) is not None:
                # Without a limit, the window of the failures is unknown.
                is_known = entry.until_ms is not None or limit.window_ms is not None
                yield scope, str(entry), entry.expires_ms(limit) if is_known else None
        elif read is not None and (scopes.unit_of(scope) is not None or read.paused_ms is not None):
            read = _within_pause(read, limit, view.latest_ms)
            yield scope, str(read), read.expires_ms
        elif scopes.unit_of(scope) is not None:
            if mark is not None:
                yield scope, str(Spent.at(mark, limit)), None
        elif value.isascii() and value.isdigit():
            furthest = None if view.latest_ms is None else limit.furthest_us(view.latest_ms)
            arrival_us = int(value) if furthest is None else min(int(value), furthest)
            yield scope, str(arrival_us), -(-arrival_us // 1000)
        elif mark is not None:
            yield scope, f"{mark * 1000:.0f}", None


def _breaker_entry(view: View, scope: str) -> BreakerEntry | None:
    """Return the entry that ``rates`` should have for a breaker; None if it should have none."""
    entry, limit = read_breaker(view.snapshot["rates"].get(scope, "")), view.limit(scope)
    if entry is not None:
        entry = _within_cooldown(entry, view.latest_ms)
    latest_ms, logged = view.latest_ms, view.log.breakers.of(scope)
    if latest_ms is None or not limit.most or not limit.window_ms or view.is_fuzzy:
        return entry
    if logged is not None:
        entry = _as_logged(view, scope, entry, logged.entry(latest_ms, latest_ms - limit.window_ms))
    if entry is None or entry.until_ms is None:
        return entry
    if (
        entry.probe
        and not _is_claimed_in(view, scope, entry.probe)
        and _has_first_limit(view, scope)
    ):
        entry = entry._replace(probe=None)
    furthest_ms = latest_ms + max(PAUSE_MAX_MS, limit.burst)
    if entry.by is None and logged is None and (entry.until_ms or 0) > furthest_ms:
        entry = entry._replace(until_ms=furthest_ms)
    return entry


def _as_logged(
    view: View, scope: str, entry: BreakerEntry | None, logged: BreakerEntry | None
) -> BreakerEntry | None:
    """Return the stored entry of a breaker if it agrees with the log; otherwise the entry that follows from the log."""
    latest_ms, window_ms = view.latest_ms or 0, view.limit(scope).window_ms or 0
    if logged is not None and logged.until_ms is not None:
        if logged.until_ms + KEPT_MS <= latest_ms:
            return entry  # Redis may have forgotten the pause.
        if entry is None or (entry.until_ms, entry.by) != (logged.until_ms, logged.by):
            return logged
        probe = logged.probe
        return entry if probe is None or entry.probe else entry._replace(probe=probe)
    failed = tuple(t for t in entry.failed if t > latest_ms - window_ms) if entry else ()
    if entry is not None and entry.until_ms is not None:
        return logged
    return entry if failed == (logged.failed if logged else ()) else logged


def _is_claimed_in(view: View, scope: str, job_id: str) -> bool:
    job = view.jobs.get(job_id)
    if job is None:
        return job_id in view.unreadable
    return job.state in CLAIMED_STATES and scope in scopes.scopes_of(job.lane or "")


def _has_first_limit(view: View, scope: str) -> bool:
    """Return whether the limit of a breaker's scope was never changed.

    If a limit was removed while a probe job ran, and set again later, the entry may name a probe that has ended. That
    is not a fault: the next claim checks whether the probe runs.
    """
    family = view.caps.get(scopes.family_of(scope))
    return scope not in view.caps and family is not None and family.version == 1


def breaker_reason(view: View, scope: str) -> str:
    """Return why a breaker's entry in ``rates`` is wrong, as text."""
    text, logged = view.snapshot["rates"].get(scope, ""), view.log.breakers.of(scope)
    entry, should = read_breaker(text), _breaker_entry(view, scope)
    if text and entry is None:
        return "the entry of the breaker is unreadable"
    if entry and entry.at_ms > (view.latest_ms or entry.at_ms):
        return "the clock went back"
    if entry and should and entry._replace(probe=should.probe) == should:
        return f"its probe {entry.probe!r} does not run" if entry.probe else "its probe is missing"
    if logged is None:
        return "it is paused for longer than a handler or its breaker may pause it"
    if should is not None and should.until_ms is not None:
        return f"by the log it is paused until {should.until_ms}"
    failures = 0 if should is None else len(should.failed)
    return f"by the log it is open, with {counted(failures, 'failure')} in its window"


def _within_cooldown(entry: BreakerEntry, latest_ms: int | None) -> BreakerEntry:
    """Return a breaker's entry, with corrected times if the clock of Redis was set back.

    This is so if the entry was written after ``latest_ms`` (Unix ms). The difference is then subtracted from all times
    in the entry, so that a pause does not become longer.
    """
    if latest_ms is None or entry.at_ms <= latest_ms:
        return entry
    back = entry.at_ms - latest_ms
    until_ms = None if entry.until_ms is None else entry.until_ms - back
    failed = tuple(at_ms - back for at_ms in entry.failed)
    return BreakerEntry(latest_ms, until_ms, entry.probe, failed, entry.by)


def _within_pause(spent: Spent, limit: Limit, latest_ms: int | None) -> Spent:
    """Return the stored value of a rate. A pause that no operator made is shortened to the longest pause that a handler
    may ask for, counted from ``latest_ms`` (Unix ms)."""
    if (
        latest_ms is None
        or spent.paused_ms is None
        or spent.paused_by is not None
        or spent.paused_ms <= latest_ms + PAUSE_MAX_MS
    ):
        return spent
    until_ms = latest_ms + PAUSE_MAX_MS
    furthest_us = limit.furthest_us(until_ms) or until_ms * 1000
    return spent._replace(
        arrival_us=min(spent.arrival_us, furthest_us), at_ms=latest_ms, paused_ms=until_ms
    )


def latest_resumes(view: View) -> Iterator[tuple[str, int]]:
    """Yield (member of ``scheduled``, latest allowed time in Unix ms) for each rate that would resume too late.

    The latest allowed time follows from the rate's limit and its pause.
    """
    for member, at in view.snapshot["scheduled"].items():
        kind, _, scope = member.partition("|")
        if kind == "rate" and scopes.is_rate(scope) and view.latest_ms is not None:
            latest = _latest_resume(view, member, scope, view.latest_ms)
            if latest is not None and at > latest:
                yield member, latest


def _latest_resume(view: View, member: str, scope: str, latest_ms: int) -> int | None:
    """Return the latest time (Unix ms) at which a rate or a breaker may resume; None if any time is right.
    ``latest_ms``: the present time."""
    value = view.snapshot["rates"].get(scope, "")
    if is_breaker(scope):
        entry = _breaker_entry(view, scope)
        return max((entry.until_ms if entry else None) or 0, latest_ms + LOOK_MS)
    latest, spent = view.limit(scope).latest_resume_ms(latest_ms), read_spent(value)
    if scopes.unit_of(scope) is None:
        return max(latest, spent.paused_ms or 0) if latest and spent else latest
    if spent is None:
        # The value of the rate is put back first.
        return None if member in view.snapshot["expiring"] else latest
    return max(latest_ms, _within_pause(spent, view.limit(scope), latest_ms).expires_ms)
