"""One job as it is shown: where it stands, or how it ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rq_core.model.machine import DEFAULT_PRIORITY, State
from rq_core.model.outcome import reason_of
from rq_core.views.jobs import ListedJob, job_document, unknown_task
from rq_core.views.scopes import standing_rows
from rq_core.views.text import ago, one_line

if TYPE_CHECKING:
    from rq_core.model.remembered import Result
    from rq_core.protocol.scope_reads import Standing

Rows = list[tuple[str, str]]
"""What there is to say, by name, in order."""


def job_rows(row: ListedJob, standing: Standing, now_ms: float) -> Rows:
    """Return what there is to say of a job in Redis, and of what it waits for."""
    job, facts = row.job, job_document(row.job)
    rows = [("job", job.id), ("queue", job.queue)]
    since = f", since {ago(facts['since_ms'], now_ms)}" if facts["since_ms"] else ""
    rows.append(("state", f"{job.state}{since}"))
    if facts["due_ms"] and job.state is State.SCHEDULED:
        rows.append(("due", ago(facts["due_ms"], now_ms)))
    if facts["expires_ms"] and job.state in (State.SCHEDULED, State.READY):
        rows.append(("expires", ago(facts["expires_ms"], now_ms)))
    rows.append(("task", facts["task"] or "?"))
    if facts["priority"] != DEFAULT_PRIORITY:
        rows.append(("priority", facts["priority"]))
    if facts["claims"]:
        rows.append(("claims", str(facts["claims"])))
    if facts["worker"]:
        rows.append(("worker", facts["worker"]))
    for name in ("failures", "losses"):
        if facts[name]:
            limit = facts[f"max_{'attempts' if name == 'failures' else name}"]
            most = "as many as its task has" if limit is None else limit
            rows.append((name, f"{facts[name]} of {most}"))
    if facts["reason"]:
        rows.append(("reason", facts["reason"]))
    if job.error is not None:
        rows.append(("error", one_line(str(job.error))))
    lost = "none: run `rq-core doctor`"
    rows.append(("arguments", lost if job.spec is None else _json(facts["args"])))
    if facts.get("headers"):
        rows.append(("headers", _json(facts["headers"])))
    if unknown := unknown_task(row):
        rows.append(("waits for", f"a worker: {unknown}"))
    return rows + standing_rows(standing, now_ms)


def ended_rows(queue: str, result: Result, value: str | None, now_ms: float) -> Rows:
    """Return what Redis remembers of a job that has ended, and the value that it returned."""
    rows = [("job", result.id), ("queue", queue)]
    if result.same_as is None:
        since = "" if result.at_ms is None else f", since {ago(result.at_ms, now_ms)}"
        rows.append(("state", f"{result.outcome}{since}"))
    else:
        rows.append(("stands for", f"job {result.same_as}"))
    if value is not None:
        rows.append(("result", value))
    elif result.missing is not None:
        rows.append(("result", f"not there: {reason_of(result.missing)}"))
    if value is not None and result.until_ms is not None:
        rows.append(("kept until", ago(result.until_ms, now_ms)))
    if result.once_ms is not None:
        rows.append(("forgotten", ago(result.once_ms, now_ms)))
    return rows


def ended_document(queue: str, result: Result, value: str | None) -> dict[str, Any]:
    """Return the same for programs."""
    document = {"queue": queue, **result._asdict()}
    if value is None:
        return document
    try:
        return document | {"value": json.loads(value)}
    except ValueError:
        return document | {"value": None}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
