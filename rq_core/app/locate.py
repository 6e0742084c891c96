"""A task's function by its module and name, so that another process finds it."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from rq_core.app.task import Task
from rq_core.errors import InvalidTask


def find(module: str, name: str) -> object:
    """What a module has under a name; None if there is no such thing."""
    found: object = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def place_of(task: Task[Any, Any]) -> tuple[str, str]:
    """Where a process of its own finds the task: module and name in it. Raises InvalidTask."""
    place = task.function.__module__, task.function.__qualname__
    if find(*place) is not task:
        raise InvalidTask(
            task=task.name,
            why='isolation="process" needs a function at the top of a module, under its own name',
        )
    return place
