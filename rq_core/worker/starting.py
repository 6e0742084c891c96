"""Starts asyncio tasks, and from Python 3.12 on lets them take their first step at once.

A handler that never waits then needs no round of the loop, and the task that it runs in, as ``asyncio.current_task()``
shows it, is a real one all the same. Python 3.11 has no such tasks. To step a coroutine without one would be quicker
there, too, but timeouts, task groups and whatever keeps things by task would find none, or another one later.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any


def start_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run a coroutine in a task of its own, with a copy of the context variables."""
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12) and loop.get_task_factory() is None:
        return asyncio.Task(coroutine, loop=loop, eager_start=True)
    return loop.create_task(coroutine)
