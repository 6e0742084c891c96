"""Makes Django's result objects for jobs in Redis and in the inbox.

Redis removes a job that has succeeded, and keeps only its result. So the function of each of Django's tasks returns a
document with all fields of Django's result: the value, the arguments and the times.
"""

from __future__ import annotations

import builtins
import dataclasses
import json
import re
from datetime import UTC, datetime
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from rq_core.app.handlers.context import JobContext
from rq_core.app.handlers.redaction import traceback_of
from rq_core.contrib.django import django_tasks
from rq_core.errors import ResultUnavailable
from rq_core.model.job import JobError, Spec, read_spec
from rq_core.model.outcome import TOO_LARGE, reason_of
from rq_core.model.result_encoding import VALUE_MAX
from rq_core.model.state_line import JobState
from rq_core.model.table.machine import State
from rq_core.signals import GiveUp

_Status: Final = django_tasks.base.TaskResultStatus
UNKNOWN_WORKER: Final = "unknown"
"""Replaces the id of a worker that is not known. Of a job's workers, Redis has only the last one."""
DEFAULT: Final = "default"
"""The alias of the default backend. A job's arguments leave this alias out."""
FAILED: Final = _Status.FAILED
_RUNNING: Final = frozenset({State.RUNNING, State.CANCELLING})
_UUID7: Final = re.compile(r"[0-9a-f]{12}7[0-9a-f]{19}")
_LAST_LINE: Final = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)
_MARGIN: Final = 1024
"""Bytes that are left for the other fields of a document."""


@dataclasses.dataclass(frozen=True)
class MissingValue:
    """Takes the place of a returned value that was not kept. ``reason`` is one word that says why."""

    reason: str


class Result(django_tasks.base.TaskResult):
    """Django's TaskResult, whose value may be missing."""

    __slots__ = ()

    @property
    def return_value(self) -> Any:
        """The value that the task returned. Raises ResultUnavailable if the value was not kept. See
        TaskResult.return_value."""
        if isinstance(self._return_value, MissingValue):
            reason = self._return_value.reason
            raise ResultUnavailable(id=self.id, reason=reason, why=reason_of(reason))
        return super().return_value


def moment_at(ms: int | None) -> datetime | None:
    """Convert Unix ms to a datetime: in UTC if USE_TZ is true, else without a time zone. None stays None."""
    if ms is None:
        return None
    found = datetime.fromtimestamp(ms / 1000, UTC)
    return found if settings.USE_TZ else timezone.make_naive(found)


def _ms_of(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    aware = moment if timezone.is_aware(moment) else timezone.make_aware(moment)
    return int(aware.timestamp() * 1000)


def _ms_of_id(job_id: str) -> int | None:
    """Return the Unix ms at which a job's id was made. Return None if the id is no UUID of version 7."""
    return int(job_id[:12], 16) if _UUID7.fullmatch(job_id) else None


def _set(result: Any, **changes: Any) -> None:
    for name, value in changes.items():
        object.__setattr__(result, name, value)


def made(task: Any, alias: str, job_id: str, **facts: Any) -> Any:
    """Return Django's result for a job of one of Django's tasks. ``alias`` is the alias of the job's backend.

    ``facts`` are fields of the result. Without ``facts``, the result is that of a waiting job.
    """
    value = facts.pop("value", None)
    given = {
        "status": _Status.READY,
        "enqueued_at": moment_at(_ms_of_id(job_id)),
        "started_at": None,
        "finished_at": None,
        "last_attempted_at": None,
        "args": [],
        "kwargs": {},
        "errors": [],
        "worker_ids": [],
    }
    result = Result(task=task, id=job_id, backend=alias, **{**given, **facts})
    _set(result, _return_value=value)
    return result


def varied(task: Any, alias: str, queue: str, priority: int) -> Any:
    """Return one of Django's tasks with the queue, the priority and the backend of a job. If ``task`` already has these
    values, return ``task`` itself.
    """
    changes = {"queue_name": queue, "priority": priority, "backend": alias}
    if all(getattr(task, name) == value for name, value in changes.items()):
        return task
    return dataclasses.replace(task, **changes)


# While a job runs.


def running_result(
    task: Any,
    backend: Any,
    job: JobContext,
    args: list[Any],
    kwargs: dict[str, Any],
    priority: int,
) -> Any:
    """Return Django's result of the job that this process begins to run."""
    now = timezone.now()
    return made(
        varied(task, backend.alias, job.queue, priority),
        backend.alias,
        job.id,
        status=_Status.RUNNING,
        started_at=now,
        last_attempted_at=now,
        args=args,
        kwargs=kwargs,
        worker_ids=[*[UNKNOWN_WORKER] * (job.claim - 1), job.worker],
    )


def positional_arguments(task: Any, result: Any) -> list[Any]:
    """Return the positional arguments for a task's function. If the task takes a context, the context is the first
    argument.
    """
    context = [django_tasks.base.TaskContext(task_result=result)] if task.takes_context else []
    return [*context, *result.args]


def succeeded(result: Any, value: Any) -> dict[str, Any]:
    """Set ``result`` to successful, with the returned ``value``. Return the document that Redis keeps.

    Raises GiveUp if the value has no JSON form. The document lacks a value that is too large. It also lacks the
    arguments if they do not fit beside the value.
    """
    try:
        plain = _normalized(value)
    except (TypeError, ValueError) as error:
        raise GiveUp(f"the task returned a value that is not JSON: {error}") from error
    _set(
        result,
        status=_Status.SUCCESSFUL,
        finished_at=timezone.now(),
        _return_value=plain,
    )
    document: dict[str, Any] = {
        "task": result.task.module_path,
        "priority": result.task.priority,
        "started": _ms_of(result.started_at),
        "finished": _ms_of(result.finished_at),
        "workers": result.worker_ids[-100:],
    }
    if result.backend != DEFAULT:
        document["alias"] = result.backend
    room = VALUE_MAX - _MARGIN - _size(document) - _size(plain)
    if room < 0:
        return document | {"missing": TOO_LARGE}
    given = {"args": result.args, "kwargs": result.kwargs}
    return document | {"value": plain} | (given if _size(given) <= room else {})


def failed(result: Any, error: Exception | SystemExit) -> None:
    """Set ``result`` to failed, with the error of the last attempt."""
    kind = type(error)
    path = f"{kind.__module__}.{kind.__qualname__}"
    said = django_tasks.base.TaskError(exception_class_path=path, traceback=traceback_of(error))
    _set(result, status=_Status.FAILED, finished_at=timezone.now())
    result.errors.append(said)


def _normalized(value: Any) -> Any:
    """Convert a value to JSON's types, as Django's own backends do. Raises TypeError or ValueError."""
    plain = django_tasks.base.normalize_json(value)
    json.dumps(plain, allow_nan=False)  # finds NaN, which Django's function lets pass
    return plain


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())


# Afterwards, and before.


def of_live_job(task: Any, backend: Any, job: JobState, spec: Spec) -> Any:
    """Return Django's result of a job that is in Redis: waiting, running or dead."""
    arguments = json.loads(spec.args_json)
    claims = int(job.fields.get("claim", 0))
    facts: dict[str, Any] = {}
    if claims:
        last = job.fields.get("by", UNKNOWN_WORKER)
        began = moment_at(job.since_ms) if job.state is State.RUNNING else None
        facts = {
            "worker_ids": [*[UNKNOWN_WORKER] * (claims - 1), last],
            "started_at": began,
            "last_attempted_at": began,
        }
    if job.state in _RUNNING:
        facts["status"] = _Status.RUNNING
    elif job.state is State.DEAD:
        facts |= {"status": _Status.FAILED, "finished_at": moment_at(job.since_ms)}
        facts["errors"] = [] if job.error is None else [task_error(job.error)]
    return _with_arguments(task, backend, job.queue, job.id, arguments, facts)


def note_claims(result: Any, claims: list[Any]) -> None:
    """Store in a result the times at which the first and the last attempt of its job began, and the workers that ran
    the job. ``claims`` are the job's ``claimed`` events in the audit log, the oldest first.
    """
    if claims:
        _set(
            result,
            started_at=moment_at(claims[0].at_ms),
            last_attempted_at=moment_at(claims[-1].at_ms),
            worker_ids=[event.worker or UNKNOWN_WORKER for event in claims],
        )


def of_row(task: Any, backend: Any, queue: str, job_id: str, args_json: str) -> Any:
    """Return Django's result of a job that is still a row of the inbox."""
    return _with_arguments(task, backend, queue, job_id, json.loads(args_json), {})


def of_document(task: Any, backend: Any, queue: str, job_id: str, document: dict[str, Any]) -> Any:
    """Return Django's result of a job that has succeeded, from a document such as ``succeeded`` returns."""
    value = MissingValue(document["missing"]) if "missing" in document else document["value"]
    began = moment_at(document["started"])
    facts = {
        "status": _Status.SUCCESSFUL,
        "started_at": began,
        "last_attempted_at": began,
        "finished_at": moment_at(document["finished"]),
        "worker_ids": document["workers"],
        "value": value,
    }
    return _with_arguments(task, backend, queue, job_id, document, facts)


def task_in_spec(text: str | None) -> Spec | None:
    """Parse the JSON with a job's task and arguments. Return None if the JSON is missing or invalid."""
    if text is None:
        return None
    try:
        return read_spec(text)
    except ValueError:
        return None


def _with_arguments(
    task: Any,
    backend: Any,
    queue: str,
    job_id: str,
    arguments: dict[str, Any],
    facts: dict[str, Any],
) -> Any:
    alias = _alias(arguments.get("alias", DEFAULT), backend, queue)
    return made(
        varied(task, alias, queue, arguments.get("priority", 0)),
        alias,
        job_id,
        args=arguments.get("args", []),
        kwargs=arguments.get("kwargs", {}),
        **facts,
    )


def _alias(alias: str, backend: Any, queue: str) -> str:
    """Return ``alias`` if the settings have a backend of rq-core with this alias, and this backend has the queue.
    Otherwise return the alias of ``backend``.
    """
    try:
        found = django_tasks.tasks.task_backends[alias]
    except django_tasks.InvalidTaskBackend:
        return str(backend.alias)
    has_queue = not found.queues or queue in found.queues
    return alias if isinstance(found, type(backend)) and has_queue else str(backend.alias)


def task_error(error: JobError) -> Any:
    """Return Django's form of the error with which a job died.

    Redis has only the name of the exception's class. The function takes the class's module from the traceback.
    """
    path = f"builtins.{error.type}" if hasattr(builtins, error.type) else error.type
    for found in _LAST_LINE.findall(error.traceback or ""):
        if found.rpartition(".")[2] == error.type and "." in found:
            path = found
    return django_tasks.base.TaskError(
        exception_class_path=path, traceback=error.traceback or str(error)
    )
