"""Makes results for Django from the audit log, for jobs that have left Redis."""

from __future__ import annotations

import json
from typing import Any, Final

from rq_core.contrib.django import task_functions, task_results
from rq_core.model import plugins
from rq_core.model.job import JobError
from rq_core.model.outcome import LOST
from rq_core.model.table.machine import Event

_ENDS: Final = {Event.SUCCEEDED, Event.DIED, Event.PRUNED}


def logged_result(backend: Any, audit_url: str, queues: set[str], job_id: str) -> Any:
    """Return the result of a job that has succeeded or failed, from the events of the audit log.

    Return None if the log has no such job in ``queues``, or if its task is not one of Django's. An empty ``queues``
    means any queue. Raises RqCoreError if the database does not answer.
    """
    events = [
        event
        for event in plugins.history_reader()(audit_url, job_id, None)
        if not event.orphaned and (not queues or event.queue in queues)
    ]
    if not events or events[-1].type not in _ENDS:
        return None
    named = [event.task for event in events if event.task]
    task = task_functions.task_of(named[-1]) if named else None
    if task is None:
        return None
    end = next(event for event in reversed(events) if event.type != Event.PRUNED)
    if end.type == Event.SUCCEEDED:
        return _succeeded(task, backend, job_id, end, events)
    return _failed(task, backend, job_id, end, events)


def _succeeded(task: Any, backend: Any, job_id: str, end: Any, events: list[Any]) -> Any:
    value = end.detail.get("value")
    if value is not None:
        document = json.loads(value)
        return task_results.of_document(task, backend, end.queue, job_id, document)
    claims = [event for event in events if event.type == Event.CLAIMED]
    document = {
        "missing": LOST,
        "started": claims[-1].at_ms if claims else None,
        "finished": end.at_ms,
        "workers": _workers(claims),
        "alias": backend.alias,
    }
    return task_results.of_document(task, backend, end.queue, job_id, document)


def _failed(task: Any, backend: Any, job_id: str, end: Any, events: list[Any]) -> Any:
    claims = [event for event in events if event.type == Event.CLAIMED]
    began = task_results.moment_at(claims[-1].at_ms if claims else None)
    error = end.detail.get("error")
    errors = []
    if isinstance(error, dict) and isinstance(error.get("type"), str):
        said = JobError(error["type"], str(error.get("message", "")), error.get("traceback"))
        errors = [task_results.task_error(said)]
    return task_results.made(
        task_results.varied(task, backend.alias, end.queue, 0),
        backend.alias,
        job_id,
        status=task_results.FAILED,
        started_at=began,
        last_attempted_at=began,
        finished_at=task_results.moment_at(end.at_ms),
        errors=errors,
        worker_ids=_workers(claims),
    )


def _workers(claims: list[Any]) -> list[str]:
    return [event.worker or task_results.UNKNOWN_WORKER for event in claims]
