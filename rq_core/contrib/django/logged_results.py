"""Makes Django's result objects from the audit log, for jobs that have left Redis."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from rq_core.contrib.django import task_functions, task_results
from rq_core.errors import RqCoreError
from rq_core.model import plugins
from rq_core.model.job import JobError
from rq_core.model.outcome import LOST
from rq_core.model.table.machine import Event

log = logging.getLogger(__name__)
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
    make = _succeeded if end.type == Event.SUCCEEDED else _failed
    result = make(task, backend, job_id, end)
    task_results.note_claims(result, _claims(events))
    return result


def add_claims(result: Any, audit_url: str, queue: str) -> None:
    """Complete the result of a job that is dead in Redis, from the log: add when its attempts began, and which workers
    ran it. Do nothing if the log does not have the job's death yet, or the database does not answer."""
    try:
        read = plugins.history_reader()(audit_url, result.id, queue)
    except RqCoreError:
        log.debug("the audit log does not say when task %s began", result.id, exc_info=True)
        return
    events = [event for event in read if not event.orphaned]
    died = events[-1] if events and events[-1].type == Event.DIED else None
    if died is not None and task_results.moment_at(died.at_ms) == result.finished_at:
        task_results.note_claims(result, _claims(events))


def _claims(events: list[Any]) -> list[Any]:
    return [event for event in events if event.type == Event.CLAIMED]


def _succeeded(task: Any, backend: Any, job_id: str, end: Any) -> Any:
    value = end.detail.get("value")
    document = {
        "missing": LOST,
        "started": None,
        "finished": end.at_ms,
        "workers": [],
        "alias": backend.alias,
    }
    if value is not None:
        document = json.loads(value)
    return task_results.of_document(task, backend, end.queue, job_id, document)


def _failed(task: Any, backend: Any, job_id: str, end: Any) -> Any:
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
        finished_at=task_results.moment_at(end.at_ms),
        errors=errors,
    )
