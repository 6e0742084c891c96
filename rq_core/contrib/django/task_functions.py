"""Makes tasks of an App from Django's tasks. The name of a task is the import path of its function.

The arguments of a job are ``{"args": […], "kwargs": {…}}``, in JSON's types, which Django's tasks require.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from rq_core.app.app import App
from rq_core.app.handlers.context import JobContext, current_job
from rq_core.app.handlers.retry import RetryPolicy
from rq_core.app.task import Task
from rq_core.contrib.django import django_tasks, task_results
from rq_core.signals import GiveUp, HandlerSignal

_known: Final[dict[str, Any]] = {}
"""All of Django's tasks that this process has, by the import path of their function."""
_adding: Final = threading.Lock()


def remember_task(task: Any) -> None:
    """Store one of Django's tasks, so that a worker can run its jobs. The first task of each function stays stored."""
    _known.setdefault(task.module_path, task)


def task_of(path: str) -> Any:
    """Return the Django task whose function has this import path; None if this process has no such task."""
    return _known.get(path)


def add_all(app: App, backend: Any) -> None:
    """Add all of Django's tasks that this process has to an app."""
    for task in list(_known.values()):
        task_in(app, task, backend)


def task_in(app: App, task: Any, backend: Any) -> Task[..., Any]:
    """Return the app's task for one of Django's tasks. The first call adds the task, with the options in
    ``backend``."""
    path = task.module_path
    with _adding:
        found = app.tasks.get(path)
        if found is None:
            found = app.task(
                name=path,
                queue=task.queue_name,
                retry=RetryPolicy(max_attempts=backend.max_attempts),
                timeout=backend.timeout,
                keep_result=backend.keep_result,
            )(_function(task, backend))
    return found


def _function(task: Any, backend: Any) -> Callable[..., Any]:
    """Return the function that a worker calls for a job of one of Django's tasks."""

    def run(
        args: list[Any],
        kwargs: dict[str, Any],
        priority: int = 0,
        alias: str = task_results.DEFAULT,
    ) -> Any:
        with _running(task, _named(alias, backend), args, kwargs, priority) as result:
            given = task_results.positional_arguments(task, result)
            return task_results.succeeded(result, task.func(*given, **result.kwargs))

    async def run_async(
        args: list[Any],
        kwargs: dict[str, Any],
        priority: int = 0,
        alias: str = task_results.DEFAULT,
    ) -> Any:
        with _running(task, _named(alias, backend), args, kwargs, priority) as result:
            given = task_results.positional_arguments(task, result)
            return task_results.succeeded(result, await task.func(*given, **result.kwargs))

    return run_async if inspect.iscoroutinefunction(task.func) else run


def _named(alias: str, backend: Any) -> Any:
    """Return the backend of rq-core with this alias. If the settings have no such backend, return ``backend``."""
    try:
        found = django_tasks.tasks.task_backends[alias]
    except django_tasks.InvalidTaskBackend:
        return backend
    return found if isinstance(found, type(backend)) else backend


@contextmanager
def _running(
    task: Any, backend: Any, args: list[Any], kwargs: dict[str, Any], priority: int
) -> Iterator[Any]:
    """Yield Django's result of the job that runs now, and send Django's signals ``task_started`` and ``task_finished``.

    ``task_finished`` is sent when the job succeeds, gives up, or raises an exception in its last attempt. It is not
    sent after a timeout. An exception of a signal's receiver does not make the job fail: Django logs the exception.
    """
    job = current_job()
    result = task_results.running_result(task, backend, job, args, kwargs, priority)
    signals = django_tasks.signals()
    signals.task_started.send_robust(sender=type(backend), task_result=result)
    try:
        yield result
    except (Exception, SystemExit) as error:
        if _is_last(error, job, backend):
            task_results.failed(result, error)
            signals.task_finished.send_robust(sender=type(backend), task_result=result)
        raise
    signals.task_finished.send_robust(sender=type(backend), task_result=result)


def _is_last(error: Exception | SystemExit, job: JobContext, backend: Any) -> bool:
    """Return whether ``task_finished`` is sent for this error.

    It is sent for GiveUp. In the last attempt, it is sent for every error that is no HandlerSignal.
    """
    if isinstance(error, HandlerSignal):
        return isinstance(error, GiveUp)
    return job.attempt >= int(backend.max_attempts)
