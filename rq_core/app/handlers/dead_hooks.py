"""Hooks: functions that rq-core calls when a job has died, ``@app.task(on_dead=…)``.

Each call is a job of its own, which :mod:`rq_core.worker.dead_hooks` enqueues.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rq_core.app.handlers.depends import dependencies_of
from rq_core.model.job import read_spec


@dataclass(frozen=True)
class DeadJob:
    """A dead job. The hook of its task receives this object."""

    id: str
    queue: str
    task: str
    arguments: dict[str, Any]
    """The job's arguments in the types of JSON; empty if they cannot be read."""
    reason: str
    """The reason of the death: a :class:`rq_core.model.table.reasons.Reason`, or a word that another client gave."""
    claims: int
    failures: int
    losses: int
    died_at_ms: int
    """Unix ms of the death."""
    event: str
    """The id of this death. If the hook is called twice for one death, both calls have the same id. No other death has
    this id."""


Hook = Callable[..., Any]
"""A function that is called with a DeadJob, and with the values of its dependencies."""


def hook_name(task: str) -> str:
    """Return the name of the task that calls the hook of ``task``."""
    return f"{task}:on_dead"


def handler_of(task: str, hook: Hook) -> Callable[..., Any]:
    """Return the handler of the task ``hook_name(task)``, which calls ``hook``.

    The hook is called when a job of ``task`` has died. The handler has the dependencies of ``hook``. Raises InvalidTask
    if a dependency is not valid.
    """
    told: Callable[..., Any]
    if inspect.iscoroutinefunction(hook):

        async def told_async(job: DeadJob, **given: Any) -> None:
            await hook(job, **given)

        told = told_async
    else:

        def told_here(job: DeadJob, **given: Any) -> None:
            hook(job, **given)

        told = told_here
    job, _ = inspect.signature(told).parameters.values()
    given = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=dependency)
        for name, dependency in dependencies_of(hook_name(task), hook).items()
    ]
    vars(told)["__signature__"] = inspect.Signature([job, *given])
    return told


def arguments_of(spec: str) -> dict[str, Any]:
    try:
        arguments: object = json.loads(read_spec(spec).args_json)
    except ValueError:
        # Another program wrote this job. The hook is still called, without arguments, so that later hooks run, too.
        return {}
    return arguments if isinstance(arguments, dict) else {}
