"""Arounds: context managers around every handler of an app, and what tests put in place of dependencies.

@app.around
@contextmanager
def timed(job: JobContext) -> Iterator[None]:
    began = time.monotonic()
    yield
    statistics.observe(job.task, time.monotonic() - began)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rq_core.app.depends import Provider, Step, dependencies_of, is_async, name_of, steps_of
from rq_core.errors import InvalidOption, InvalidTask

if TYPE_CHECKING:
    from rq_core.app.context import JobContext
    from rq_core.app.resources import Resources
    from rq_core.app.task import Task


class Around:
    """A context manager around every handler. Raises InvalidOption for a function that cannot be one."""

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


class Surroundings:
    """What an app puts around its handlers."""

    def __init__(self) -> None:
        self.arounds: list[Around] = []
        """The outermost first."""
        self._overrides: dict[Provider, Provider] = {}

    def add(self, function: Callable[[JobContext], Any], tasks: Iterable[Task[..., Any]]) -> None:
        """Put a context manager around every handler. Raises InvalidOption, or InvalidTask for one that it cannot."""
        around = Around(function)
        for task in tasks:
            _check(around, task.name, is_async=task.is_async)
        self.arounds.append(around)

    def check(self, task: str, *, is_async: bool) -> None:
        """Raises InvalidTask for a task that an around cannot be put around."""
        for around in self.arounds:
            _check(around, task, is_async=is_async)

    def steps_of(self, task: Task[..., Any]) -> Mapping[str, Step]:
        """What gives a task's parameters their values now."""
        return self._overridden(task, self._overrides) if self._overrides else task.steps

    def wrap(
        self, task: Task[..., Any], job: JobContext, resources: Resources
    ) -> Callable[..., Any]:
        """Return the function to call in place of a task's own, with the same arguments: what it does is that,
        inside the arounds and with its dependencies."""
        from rq_core.app import attempt

        running = functools.partial(
            attempt.run,
            task.function,
            (),
            is_async=task.is_async,
            steps=self.steps_of(task),
            arounds=tuple(self.arounds),
            job=job,
            resources=resources,
        )
        if task.is_async:
            return lambda **arguments: running(arguments)
        return lambda **arguments: attempt.now(running(arguments))

    def call(self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a task's function here, as its caller does; a dependency that is given is not made."""
        from rq_core.app import attempt

        given = inspect.signature(task.function).bind_partial(*args, **kwargs).arguments
        steps = {name: step for name, step in self.steps_of(task).items() if name not in given}
        called = attempt.run(task.function, args, kwargs, is_async=task.is_async, steps=steps)
        return called if task.is_async else attempt.now(called)

    @contextmanager
    def override(
        self, provider: Provider, other: Provider, tasks: Iterable[Task[..., Any]]
    ) -> Iterator[None]:
        """Let ``other`` make what ``provider`` would, within the block. Raises InvalidOption or InvalidTask."""
        for each in (provider, other):
            if not callable(each):
                raise InvalidOption(
                    option="override",
                    value=each,
                    must="must get functions or classes: the one that"
                    " Depends names, and the one in its place",
                )
        overrides = {**self._overrides, provider: other}
        for task in tasks:
            self._overridden(task, overrides)
        before, self._overrides = self._overrides, overrides
        try:
            yield
        finally:
            self._overrides = before

    def _overridden(
        self, task: Task[..., Any], overrides: Mapping[Provider, Provider]
    ) -> Mapping[str, Step]:
        found = dependencies_of(task.name, task.function)
        return steps_of(task.name, found, is_async=task.is_async, overrides=overrides)


def _check(around: Around, task: str, *, is_async: bool) -> None:
    if around.is_async and not is_async:
        raise InvalidTask(
            task=task,
            why=f"it is a `def` function, and the around {around.name} is async, so it cannot run in the"
            " handler's thread: write the around without async",
        )
