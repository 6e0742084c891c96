"""Replays the events ``cost_settled`` (a worker reports how much a job really took from rates) and ``scope_paused`` (a
job pauses a scope, such as the jobs of one tenant).

This module also passes the ends of claims to the breakers, which pause a scope after failures. It does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from rq_core.model.limits.breakers import FAILURES, is_breaker
from rq_core.model.limits.costs import COST_MAX, cost_of
from rq_core.model.limits.scopes import UNIT_PATTERN, is_rate, scopes_of, unit_of
from rq_core.model.table.machine import Event
from rq_core.model.table.reasons import Reason
from sql_audit.proof.replay.holders import Holders
from sql_audit.proof.replay.live_job import Record
from sql_audit.store.job_rows import EventRow

Fault = tuple[str, str]
"""The number of the violated invariant, and a phrase that continues a sentence about the event."""

_FAILURES: Final = frozenset({Event.RETRIED, Event.DIED})
_BREAKERS: Final = f":{FAILURES}="
_TAKEN: Final = re.compile(rf"{UNIT_PATTERN}:\d{{1,10}}(?:,{UNIT_PATTERN}:\d{{1,10}})*")


def judge_cost(
    row: EventRow, facts: Mapping[str, Any], record: Record, holders: Holders
) -> Iterator[Fault]:
    """Correct how much of the rates is in use, from an event ``cost_settled``, and yield the event's faults.

    Only the worker of the claim in force may report the cost, once, and only for units that the job's rates count.
    """
    fence = facts.get("fence")
    if record.fence is None or fence != record.fence:
        if record.state is not None:
            in_force = "no claim is" if record.fence is None else f"{record.fence} is"
            yield "I9", f"settles the cost of fence {fence}, and {in_force} in force"
        return
    if record.worker is not None and row[8] != record.worker:
        yield "I9", f"settles the cost of a claim of {record.worker}"
    if record.taken:
        yield "I9", "settles the cost of its claim a second time"
        return
    record.taken = True
    scopes = _rates_of(record)
    if scopes is None:
        return
    written = facts.get("taken")
    taken = _read(written)
    if taken is None:
        yield "I3", f"says {written!r}, and these are no costs"
        return
    if record.priority is None:
        # The job may have more rates than its claim names.
        holders.forget_units(taken.keys(), scopes)
    else:
        for unit in taken.keys() - set(map(unit_of, scopes)):
            yield "I3", f"says what the job took of {unit}, and no rate of the job counts it"
    # The claim has its own costs: the log may lack the job's beginning.
    costs = {scope: cost for scope, *_, cost in record.listed.rates} if record.listed else {}
    for scope in scopes:
        counted = unit_of(scope)
        if counted in taken:
            with suppress(ValueError):  # The claim of an invalid cost was reported.
                cost = costs[scope] if scope in costs else cost_of(record.cost, scope)
                holders.correct(scope, taken[counted] - cost, row[5])


def judge_pause(
    row: EventRow, facts: Mapping[str, Any], record: Record, holders: Holders
) -> Iterator[Fault]:
    """Pause a scope, from an event ``scope_paused``, and yield the event's faults.

    Only the worker of the claim in force may pause a scope. The scope must belong to a rate or a breaker of the job.
    The event must not make an earlier pause shorter.
    """
    fence, scope, until_ms = facts.get("fence"), facts.get("scope"), facts.get("until_ms")
    if record.state is not None and (record.fence is None or fence != record.fence):
        in_force = "no claim is" if record.fence is None else f"{record.fence} is"
        yield "I9", f"pauses a scope under fence {fence}, and {in_force} in force"
        return
    if record.worker is not None and row[8] != record.worker:
        yield "I9", f"pauses a scope under a claim of {record.worker}"
    rates = _rates_of(record)
    if rates is not None and record.priority is not None and scope not in rates:
        yield "I3", f"pauses {scope}, and the job has no such rate or breaker"
        return
    if not holders.pause(str(scope), int(until_ms or 0), record, row):
        yield "I3", f"makes the pause of {scope} shorter"


def judge_end(
    event: Event, row: EventRow, facts: Mapping[str, Any], record: Record, holders: Holders
) -> Iterator[Fault]:
    """Apply the end of a claim to the job's breakers, which pause a scope after failures. Yield a fault for each scope
    that is wrongly paused or not paused.

    Also yield a fault if the job's handler has paused a scope, and the claim does not end with the job given back for
    this reason.
    """
    if event in _FAILURES:
        for says in holders.fail(record, _breakers_of(record), facts, row[5]):
            yield "I3", says
    elif event is Event.PARKED or (
        event is Event.ROLLED_BACK and facts.get("reason") != Reason.SCOPE_PAUSED
    ):
        for says in holders.breakers.end(record, f"is {event.replace('_', ' ')}"):
            yield "I3", says


def judge_success(row: EventRow, record: Record, holders: Holders) -> Iterable[Fault]:
    """Apply a job's success to its breakers. Return a fault if the job's handler had paused a scope: such a handler
    must give the job back.
    """
    listed, breakers = record.listed, holders.breakers
    if listed is not None and not listed.breakers and not breakers.handled:
        return ()  # Most jobs have no breaker.
    scopes = () if listed is None else listed.breakers
    return (("I3", says) for says in breakers.succeed(scopes, record, row[5]))


def _breakers_of(record: Record) -> set[str] | None:
    """Return the scopes that the job's breakers may pause; None: not known.

    If the log lacks the job's beginning, return only those that had a limit at the job's last claim.
    """
    listed = {scope for scope, _ in record.listed.breakers} if record.listed is not None else None
    if record.priority is None:
        return listed
    lane = record.lane or ""
    # Most jobs have no breaker.
    named = filter(is_breaker, scopes_of(lane)) if _BREAKERS in lane else ()
    return {*(listed or ()), *named}


def _rates_of(record: Record) -> list[str] | None:
    """Return the names of a job's rates, with or without a limit; None if they are unknown.

    If the log lacks the job's beginning, return only the rates that had a limit at the job's last claim: the claim
    names them.
    """
    known = record.lane if record.priority is not None else None
    names = record.listed.limits if record.listed is not None else ()
    if known is None and record.listed is None:
        return None
    return sorted({name for name in (*scopes_of(known or ""), *names) if is_rate(name)})


def _read(text: Any) -> dict[str, int] | None:
    if not isinstance(text, str) or _TAKEN.fullmatch(text) is None:
        return None
    parts = [part.split(":") for part in text.split(",")]
    taken = {unit: int(number) for unit, number in parts}
    return taken if len(taken) == len(parts) and max(taken.values()) <= COST_MAX else None
