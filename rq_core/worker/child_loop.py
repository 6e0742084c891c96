"""The event loop of a process that runs isolated handlers: one for the process' life, so that what lives as long, such
as a pool of connections, can be used by one job after the other."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar
from weakref import WeakSet

from rq_core.app.context import job_here

T = TypeVar("T")


class ChildLoop:
    """Runs coroutines one at a time. Between them, nothing on the loop goes on."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._of_the_job: WeakSet[asyncio.Task[Any]] = WeakSet()
        """What handlers have started; what dependencies have started that live on is not among them."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a handler, and return what it does. What it leaves behind is cancelled, as asyncio.run would."""
        self._runner.get_loop().set_task_factory(self._make)
        try:
            return self._runner.run(coroutine, context=contextvars.copy_context())
        finally:
            self._runner.run(self._end_rest(), context=contextvars.Context())

    def _make(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        if job_here(options.get("context")) is not None:
            self._of_the_job.add(task)
        return task

    async def _end_rest(self) -> None:
        rest = [task for task in self._of_the_job if not task.done()]
        self._of_the_job.clear()
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run a last coroutine, and end the loop."""
        with self._runner as runner:
            runner.run(last, context=contextvars.Context())
