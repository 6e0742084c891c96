"""The view of one job: its state or, if the job has ended, its outcome."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rq_core.model.durable.tries import read_base
from rq_core.model.lib.text import counted
from rq_core.model.limits.costs import read_costs
from rq_core.model.outcome import reason_of
from rq_core.model.table.machine import DEFAULT_PRIORITY, State
from rq_core.model.table.reasons import Reason
from rq_core.views.jobs import ListedJob, blind_returns, job_document, number, unknown_task
from rq_core.views.scopes import standing_rows
from rq_core.views.text import ago, one_line

if TYPE_CHECKING:
    from rq_core.model.idempotency import ResultLine
    from rq_core.protocol.reads.scope_reads import Standing

Rows = list[tuple[str, str]]
"""(name, value) pairs, in the order in which they are shown."""


def job_rows(row: ListedJob, standing: Standing, now_ms: float) -> Rows:
    """Return the (name, value) rows about a job in Redis: its state and options, its lane (waiting line), and the scope
    or worker for which it waits.
    """
    job, facts = row.job, job_document(row.job)
    rows = [("job", job.id), ("queue", job.queue)]
    since = f", since {ago(facts['since_ms'], now_ms)}" if facts["since_ms"] else ""
    rows.append(("state", f"{job.state}{since}"))
    if facts["due_ms"] and job.state in (State.SCHEDULED, State.PARKED):
        rows.append(("due", ago(facts["due_ms"], now_ms)))
    if facts["expires_ms"] and job.state in (State.SCHEDULED, State.PARKED, State.READY):
        rows.append(("expires", ago(facts["expires_ms"], now_ms)))
    rows.append(("task", facts["task"] or "?"))
    if facts["priority"] != DEFAULT_PRIORITY:
        rows.append(("priority", facts["priority"]))
    if cost := _cost(job.fields.get("cost")):
        rows.append(("cost", cost))
    if facts["claims"]:
        rows.append(("claims", str(facts["claims"])))
    if facts["worker"]:
        rows.append(("worker", facts["worker"]))
    base = read_base(job.fields.get("base"))
    for name in ("failures", "losses"):
        if facts[name]:
            limit = facts[f"max_{'attempts' if name == 'failures' else name}"]
            most = "the number that its task has" if limit is None else limit
            before = getattr(base, name)
            since = f", {before} of them before its last saved step" if before else ""
            rows.append((name, f"{facts[name]} of {most}{since}"))
    if facts["reason"]:
        rows.append(("reason", facts["reason"]))
    if job.error is not None:
        rows.append(("error", one_line(str(job.error))))
    lost = "none: run `rq-core doctor`"
    rows.append(("arguments", lost if job.spec is None else _json(facts["args"])))
    if facts.get("headers"):
        rows.append(("headers", _json(facts["headers"])))
    return rows + _needs(row, now_ms) + standing_rows(standing, now_ms)


def _cost(text: str | None) -> str:
    """Return, as text, how much of each unit a claim of the job takes from rates, by the producer's estimate.

    Empty if the job has no costs, or if its costs are unreadable.
    """
    try:
        costs = read_costs(text) if text else {}
    except ValueError:
        return ""
    return ", ".join(f"{many:,} {unit}" for unit, many in sorted(costs.items()))


_WHY: Final[Mapping[str, str]] = {
    Reason.UNKNOWN_TASK: "the worker does not have its task",
    Reason.UNKNOWN_ARGUMENTS: "the worker's task does not take its arguments",
    Reason.LANE_CHANGED: "its producer did not know the caps of its task",
    Reason.SUSPECT: "the job has lost a worker, and another such job was running on the worker that claimed it",
    Reason.SNOOZED: "its handler raised Snooze",
    Reason.SHUTDOWN: "the worker stopped",
    Reason.NOT_STARTED: "the worker could not start a thread or a process for it",
    Reason.NEW_EPOCH: "Redis began an epoch between the claim and its answer",
    Reason.LATE: "its lease was nearly over before its handler could begin",
    Reason.NO_ROOM: "the worker had no free place for it any more",
}
"""The reasons for which a worker gives a job back, each with an explanation."""
_OR_CANCEL: Final = "or end the job with `rq-core cancel ID`"
_TO_DO: Final[Mapping[str | None, str]] = {
    Reason.UNKNOWN_TASK: f"start a worker whose code has the task, {_OR_CANCEL}",
    Reason.UNKNOWN_ARGUMENTS: 'the log of the worker says why ("job cannot be run here"): start a worker whose task'
    f" takes the arguments, {_OR_CANCEL} and enqueue it with others",
}
"""The reasons that would occur again at each claim, each with the remedy for an operator."""


def _needs(row: ListedJob, now_ms: float) -> Rows:
    """Return rows that say which worker gave a job back, which worker the job needs, and what an operator can do."""
    rows = _given_back(row, now_ms)
    if unknown := unknown_task(row):
        rows.append(("waits for", f"a worker: {unknown}"))
    elif row.waits and not row.known.workers:
        rows.append(("waits for", f"a worker: none runs for {row.job.queue}"))
    reason = Reason.UNKNOWN_TASK if unknown else row.back and row.back.reason
    if reason == Reason.UNKNOWN_TASK and row.task_known:
        # A worker that has the task may claim the job next.
        reason = None
    if reason in _TO_DO:
        rows.append(("to do", _TO_DO[reason]))
    return rows


def _given_back(row: ListedJob, now_ms: float) -> Rows:
    if row.back is None:
        blind = blind_returns(row)
        where = f"`rq-core audit history {row.job.id}` says why, if the queue is mirrored"
        return [("given back", f"{blind}; {where}")] if blind else []
    reason, by, at_ms = row.back
    why = f"{reason}, {_WHY[reason]}" if reason in _WHY else reason
    times = number(row.job, "unknown")
    often = f"{counted(times, 'time')}, last " if times > 1 else ""
    return [("given back", f"{often}by {by}, {ago(at_ms, now_ms)}: {why}")]


def ended_rows(queue: str, result: ResultLine, value: str | None, now_ms: float) -> Rows:
    """Return the rows about a job that has ended: its outcome as far as Redis has it, and its result."""
    rows = [("job", result.id), ("queue", queue)]
    if result.same_as is None:
        since = "" if result.at_ms is None else f", since {ago(result.at_ms, now_ms)}"
        rows.append(("state", f"{result.outcome}{since}"))
    else:
        rows.append(("same as", f"job {result.same_as}"))
    if value is not None:
        rows.append(("result", value))
    elif result.missing is not None:
        rows.append(("result", f"not there: {reason_of(result.missing)}"))
    if value is not None and result.until_ms is not None:
        rows.append(("kept until", ago(result.until_ms, now_ms)))
    if result.once_ms is not None:
        rows.append(("forgotten", ago(result.once_ms, now_ms)))
    return rows


def ended_document(queue: str, result: ResultLine, value: str | None) -> dict[str, Any]:
    """Return a JSON document about a job that has ended: its outcome and its result. An unreadable result becomes
    None.
    """
    document = {"queue": queue, **result._asdict()}
    if value is None:
        return document
    try:
        return document | {"value": json.loads(value)}
    except (ValueError, RecursionError):
        return document | {"value": None}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
