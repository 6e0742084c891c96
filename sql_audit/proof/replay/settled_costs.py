"""Replays what jobs have really taken of units, and the scopes that they paused: the events ``cost_settled`` and
``scope_paused``. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rq_core.model.limits.costs import cost_of
from rq_core.model.limits.scopes import unit_of
from sql_audit.proof.replay.holders import Holders
from sql_audit.proof.replay.live_job import Record
from sql_audit.store.job_rows import EventRow

Fault = tuple[str, str]
"""The number of an invariant, and a sentence."""


def judge_cost(
    row: EventRow, facts: Mapping[str, Any], record: Record, holders: Holders
) -> Iterator[Fault]:
    """Correct the rates of a job by what it has really taken, and yield the faults of the event: only the worker of the
    claim in force says what its job has taken, once, and only of units that the job's rates count."""
    fence, listed = facts.get("fence"), record.listed
    if record.fence is None or fence != record.fence:
        if record.state is not None:
            in_force = "no claim is" if record.fence is None else f"{record.fence} is"
            yield "I9", f"settles the cost of fence {fence}, and {in_force} in force"
        return
    if record.worker is not None and row[8] != record.worker:
        yield "I9", f"settles the cost of a claim of {record.worker}"
    if record.told:
        yield "I9", "settles the cost of its claim a second time"
        return
    record.told = True
    if listed is None:
        return
    written = facts.get("told")
    told = _read(written)
    if told is None:
        yield "I3", f"says {written!r}, and these are no costs"
        return
    for unit in told.keys() - {unit_of(scope) for scope in listed.limits}:
        yield "I3", f"says what the job took of {unit}, and no rate of the job counts it"
    for scope in listed.limits:
        counted = unit_of(scope)
        if counted in told:
            more = told[counted] - cost_of(record.cost, scope)
            holders.correct(scope, more, row[5])


def judge_pause(
    row: EventRow, facts: Mapping[str, Any], record: Record, holders: Holders
) -> Iterator[Fault]:
    """Note that a job has paused one of its scopes, and yield the faults of the event: only the worker of the claim in
    force pauses a scope, it is a rate of the job, and a pause is never made shorter."""
    fence, scope, until_ms = facts.get("fence"), facts.get("scope"), facts.get("until_ms")
    if record.state is not None and (record.fence is None or fence != record.fence):
        in_force = "no claim is" if record.fence is None else f"{record.fence} is"
        yield "I9", f"pauses a scope under fence {fence}, and {in_force} in force"
        return
    if record.worker is not None and row[8] != record.worker:
        yield "I9", f"pauses a scope under a claim of {record.worker}"
    if record.listed is not None and scope not in record.listed.limits:
        yield "I3", f"pauses {scope}, and the job has no such rate"
        return
    if not holders.pause(str(scope), int(until_ms or 0)):
        yield "I3", f"makes the pause of {scope} shorter"


def _read(text: Any) -> dict[str, int] | None:
    try:
        parts = [part.split(":") for part in text.split(",")]
        return {unit: int(number) for unit, number in parts}
    except (ValueError, AttributeError):
        return None
