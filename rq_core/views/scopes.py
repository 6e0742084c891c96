"""Views of scopes, the groups of jobs that have a common limit: all scopes of a queue, and the scope for which a job
waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rq_core.model.lib.text import counted
from rq_core.model.limits.breakers import is_breaker
from rq_core.model.limits.limit import is_endless, shown
from rq_core.model.limits.pauses import Pause, cause_says, pause_of, resume_command, resume_says
from rq_core.model.limits.scopes import QUEUE, WEIGHT, family_of, is_rate, unit_of
from rq_core.protocol.reads.scope_reads import LANES_MAX
from rq_core.views.table import Found
from rq_core.views.text import ago, span, utc

if TYPE_CHECKING:
    from rq_core.model.limits.limit import Limit
    from rq_core.model.limits.use import ScopeUse
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations
    from rq_core.protocol.reads.scope_reads import ScopeStatus, Standing


def scopes(
    calls: Operations, queue: str, limit: int, *, lanes: int = LANES_MAX
) -> Plan[Found[ScopeStatus]]:
    """Return at most ``limit`` of the scopes that limit the jobs of a queue.

    Waiting jobs are counted in at most about ``lanes`` lanes.
    """
    found = yield from calls.reads.caps(queue, limit + 1, lanes=lanes)
    notes = [f"the first {limit:,}; --limit shows more"] if len(found) > limit else []
    paused = [each.scope for each in found[:limit] if each.use.standing == "paused"]
    if paused:
        notes.append(resume_says(queue, paused))
    return Found(found[:limit], empty=f"nothing limits the jobs of {queue}", notes=notes)


def with_pauses(statuses: Iterable[ScopeStatus], pauses: Mapping[str, Pause]) -> list[ScopeStatus]:
    """Return ``statuses`` with the audit log's document about the pause of each scope that is paused, or probing
    (tested by one job after a pause). ``pauses`` has the last pauses in the log, by scope.
    """
    return [each._replace(pause=pause_of(each.use, pauses.get(each.scope))) for each in statuses]


def not_open(statuses: Iterable[ScopeStatus]) -> list[str]:
    """Return the names of the scopes that are paused, or probing (tested by one job after a pause)."""
    return [each.scope for each in statuses if each.use.standing != "open"]


def scope_document(status: ScopeStatus) -> dict[str, Any]:
    """Return a scope as a JSON document."""
    declared = None if status.declared is None else str(status.declared)
    return status._asdict() | {
        "limit": str(status.limit),
        "declared": declared,
        "use": status.use._asdict() if is_rate(status.scope) else None,
    }


def limit_of(status: ScopeStatus) -> str:
    """Return the limit of a scope as text. For a key of a fair queue that has a weight, return the weight."""
    if _is_weight(status):
        return f"weighs {status.limit}"
    whole_family = "=" not in status.scope and status.scope != QUEUE and not status.keyless
    return with_unit(status.limit, status.scope) + (" each" if whole_family else "")


def with_unit(limit: Limit, scope: str) -> str:
    """Return a limit as text: a breaker's with its cooldown, and a rate's with its unit."""
    if is_breaker(scope) and limit.window_ms and limit.most:
        window, cooldown = limit.window_ms / 1000, limit.burst / 1000
        return f"{limit.most} failures/{window:g}s, then {cooldown:g}s"
    unit = unit_of(scope)
    return shown(limit) + (f" {unit}" if unit and limit.window_ms else "")


def holders_of(status: ScopeStatus) -> object:
    """Return the number of running jobs that a scope's cap counts; empty for rates and weights, which count no running
    jobs.
    """
    return "" if is_rate(status.scope) or _is_weight(status) else status.holders


def waiting_of(status: ScopeStatus) -> str:
    """Return the number of jobs that wait for a scope, as text; empty for weights. A ``+`` means *at least*."""
    return "" if _is_weight(status) else f"{status.waiting:,}{'+' if status.partial else ''}"


def _is_weight(status: ScopeStatus) -> bool:
    return family_of(status.scope) == WEIGHT


def scope_notes(status: ScopeStatus, now_ms: float) -> str:
    """Return notes about a scope as one text, such as its pause, and the operator who has set its limit."""
    notes = use_notes(status.use, status.scope, status.now_ms or now_ms, status.pause)
    if status.resumes_ms is not None and status.use.standing == "open" and status.limit.most:
        if is_endless(status.resumes_ms):
            notes.append("paused until an operator resumes the scope")
        else:
            first = "the first " if "=" not in status.scope else ""
            notes.append(f"{first}resumes {ago(status.resumes_ms, status.now_ms or now_ms)}")
    if status.source == "live":
        by = f" by {status.set_by}" if status.set_by else ""
        at = f" {ago(status.set_at_ms, now_ms)}" if status.set_at_ms else ""
        notes.append(f"set live{by}{at}")
        if status.declared is not None:
            notes.append(f"code says {shown(status.declared)}")
    elif status.source == "family":
        notes.append(f"as {family_of(status.scope)}")
    return "; ".join(notes)


def use_notes(use: ScopeUse, scope: str, now_ms: float, pause: Pause | None = None) -> list[str]:
    """Return notes about a scope: whether it is paused or probing (tested by one job), and how much of its rate is in
    use.

    ``pause`` is the audit log's document about the pause; None if the log has no such document.
    """
    unit, notes = unit_of(scope) or "", []
    if use.standing == "paused":
        until = (
            "until resume-scope"
            if use.until_ms is None
            else f"until {utc(use.until_ms)} (in {span(use.until_ms - now_ms)})"
        )
        by = f"by {use.by}" if use.by else ""
        by = by if pause is None else cause_says(pause)
        notes.append(f"paused {until}" + (f", {by}" if by else ""))
    elif use.standing == "probing":
        probe = f"job {use.probe} is the probe" if use.probe else "the next job is the probe"
        was = "" if pause is None else f", after a pause {cause_says(pause)}"
        notes.append(f"probing: {probe}{was}")
    if use.failures:
        notes.append(counted(use.failures, "failure"))
    if use.owes:
        notes.append(f"owes {use.owes:,} {unit}")
    elif use.in_use and unit:
        notes.append(f"{use.in_use:,} {unit} in use")
    return notes


def standing_rows(standing: Standing, now_ms: float) -> list[tuple[str, str]]:
    """Return the (name, value) rows about a job's lane (waiting line), and about the full or paused scope for which the
    job waits.
    """
    rows = [("lane", standing.lane)] if standing.lane else []
    if standing.paused and standing.job.state == "ready":
        rows.append(("waits for", "the queue, which is paused"))
    elif standing.scope is not None:
        rows.append(("waits for", standing.scope))
        if is_rate(standing.scope) and standing.limit.most:
            what = "breaker" if is_breaker(standing.scope) else "rate"
            rows.append((what, with_unit(standing.limit, standing.scope)))
            at_ms = standing.now_ms or now_ms
            notes = use_notes(standing.use, standing.scope, at_ms, standing.pause)
            rows += [("scope", note) for note in notes]
            if standing.use.standing == "paused":
                rows.append(("resume", resume_command(standing.job.queue, standing.scope)))
            if standing.resumes_ms is not None and standing.use.standing == "open":
                rows.append(("resumes", ago(standing.resumes_ms, standing.now_ms or now_ms)))
        else:
            rows.append(("cap", f"{shown(standing.limit)}, held by {standing.holders:,}"))
            for holder in standing.shown:
                since = f", since {ago(holder.since_ms, now_ms)}" if holder.since_ms else ""
                rows.append(("held by", f"{holder.id} at {holder.worker or '?'}{since}"))
            if standing.holders > len(standing.shown) > 0:
                rows.append(("", f"and {standing.holders - len(standing.shown):,} more"))
    if standing.ahead:
        where = "in its lane" if standing.ahead_in == "lane" else "may run before it"
        least = "at least " if standing.ahead_at_least else ""
        rows.append(("ahead", f"{least}{standing.ahead:,} {where}"))
    return rows


def standing_document(standing: Standing) -> dict[str, Any]:
    """Return a JSON document about a job's lane (waiting line) and the full or paused scope for which the job waits."""
    return {
        "lane": standing.lane or None,
        "place": standing.place or None,
        "waits_for": standing.scope,
        "limit": None if standing.scope is None else str(standing.limit),
        "holders": standing.holders,
        "held_by": [holder._asdict() for holder in standing.shown],
        "resumes_ms": standing.resumes_ms,
        "use": standing.use._asdict() if standing.scope and is_rate(standing.scope) else None,
        "pause": standing.pause,
        "now_ms": standing.now_ms,
        "ahead": standing.ahead,
        "ahead_in": standing.ahead_in or None,
        "ahead_at_least": standing.ahead_at_least,
        "paused": standing.paused,
    }
