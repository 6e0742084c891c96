"""An around: a context manager around every handler of an app, which sees what the handler raises.

@app.around
@contextmanager
def timed(job: JobContext) -> Iterator[None]:
    began = time.monotonic()
    yield
    statistics.observe(job.task, time.monotonic() - began)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rq_core.app.context import JobContext
from rq_core.app.depends import dependencies_of, is_async, makes_managers, name_of
from rq_core.errors import InvalidOption, InvalidTask


def _makes_manager(function: Any) -> bool:
    """Whether calling it gives a context manager, or the generator of one, as far as can be told without that."""
    if not inspect.isroutine(inspect.unwrap(function)):
        # A class, an object that is called, or a partial of either.
        return makes_managers(function) or not isinstance(function, type)
    called = inspect.unwrap(function)
    return inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called)


class Around:
    """One of them. Raises InvalidOption for a function that cannot be one."""

    def __init__(self, function: Callable[[JobContext], Any]) -> None:
        self.function = function
        self.name = name_of(function)
        self.is_async = is_async(function) and not inspect.iscoroutinefunction(function)
        try:
            inspect.signature(function).bind(None)
        except TypeError as error:
            raise InvalidOption(
                option="around", value=function, must=f"must take one argument, the job ({error})"
            ) from None
        if inspect.iscoroutinefunction(function):
            raise InvalidOption(
                option="around", value=function, must="must yield once, and is a coroutine function"
            )
        if dependencies_of("around", function):
            raise InvalidOption(
                option="around",
                value=function,
                must="must take the job only: it gets no dependencies",
            )
        if not _makes_manager(function):
            raise InvalidOption(
                option="around",
                value=function,
                must="must yield once, around the handler: it is a plain function. Write a generator, or what"
                " contextmanager makes of one",
            )

    def check(self, task: str, *, is_async: bool) -> None:
        """Raises InvalidTask for a task that it cannot be put around."""
        if self.is_async and not is_async:
            raise InvalidTask(
                task=task,
                why=f"it is a `def` function, and the around {self.name} is async, so it cannot run in the"
                " handler's thread: write the around without async",
            )
