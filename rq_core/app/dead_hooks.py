"""Hooks of jobs that died: ``@app.task(on_dead=…)``. :mod:`rq_core.worker.dead_hooks` tells them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rq_core.model.job import read_spec


@dataclass(frozen=True)
class DeadJob:
    """What a hook is told of a job that died."""

    id: str
    queue: str
    task: str
    arguments: dict[str, Any]
    """As JSON has them; empty if they cannot be read."""
    reason: str
    """A :class:`rq_core.model.reasons.Reason`, or a word of another client."""
    claims: int
    failures: int
    losses: int
    died_at_ms: int
    """Unix milliseconds."""
    event: str
    """The same each time that this death is told, and of no other."""


Hook = Callable[[DeadJob], Any]


def hook_name(task: str) -> str:
    """The name of the task that runs a task's hook."""
    return f"{task}:on_dead"


def handler_of(hook: Hook) -> Callable[[DeadJob], Any]:
    """The function of that task."""
    if inspect.iscoroutinefunction(hook):

        async def told_async(job: DeadJob) -> None:
            await hook(job)

        return told_async

    def told(job: DeadJob) -> None:
        hook(job)

    return told


def arguments_of(spec: str) -> dict[str, Any]:
    try:
        arguments: object = json.loads(read_spec(spec).args_json)
    except ValueError:
        # Somebody else's hand was in it. Its hook is told all the same, and those behind it must be, too.
        return {}
    return arguments if isinstance(arguments, dict) else {}
