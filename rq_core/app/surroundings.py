"""What an app puts around its handlers: its arounds, the tasks' dependencies, and what tests put in place of these."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from rq_core.app.attempt import Around, ProcessValues, now, run
from rq_core.app.context import JobContext
from rq_core.app.depends import Provider, Step, dependencies_of, steps_of
from rq_core.errors import InvalidOption


class TaskFunction(Protocol):
    """What matters here of a task."""

    @property
    def name(self) -> str: ...
    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def is_async(self) -> bool: ...
    @property
    def steps(self) -> Mapping[str, Step]: ...


class Surroundings:
    """What an app puts around its handlers."""

    def __init__(self) -> None:
        self.arounds: list[Around] = []
        """The outermost first."""
        self._overrides: dict[Provider, Provider] = {}
        self._blocks: list[tuple[Provider, Provider]] = []
        """The overrides that are in force, the last one last."""

    def add(self, function: Callable[[JobContext], Any], tasks: Iterable[TaskFunction]) -> None:
        """Put a context manager around every handler. Raises InvalidOption, or InvalidTask for one that it cannot."""
        around = Around(function)
        for task in tasks:
            around.check(task.name, is_async=task.is_async)
        self.arounds.append(around)

    def check(self, task: str, *, is_async: bool) -> None:
        """Raises InvalidTask for a task that an around cannot be put around."""
        for around in self.arounds:
            around.check(task, is_async=is_async)

    def steps_of(self, task: TaskFunction) -> Mapping[str, Step]:
        """What gives a task's parameters their values now."""
        return self._overridden(task, self._overrides) if self._overrides else task.steps

    def wrap(
        self, task: TaskFunction, job: JobContext, resources: ProcessValues
    ) -> Callable[..., Any]:
        """Return the function to call in place of a task's own, with the same arguments: what it does is that,
        inside the arounds and with its dependencies."""
        running = functools.partial(
            run,
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
        return lambda **arguments: now(running(arguments))

    def call(self, task: TaskFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a task's function here, as its caller does; a dependency that is given is not made."""
        given = inspect.signature(task.function).bind_partial(*args, **kwargs).arguments
        steps = {name: step for name, step in self.steps_of(task).items() if name not in given}
        called = run(task.function, args, kwargs, is_async=task.is_async, steps=steps)
        return called if task.is_async else now(called)

    @contextmanager
    def override(
        self, provider: Provider, other: Provider, tasks: Iterable[TaskFunction]
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
        block = (provider, other)
        self._blocks.append(block)
        self._overrides = overrides
        try:
            yield
        finally:
            # Blocks may end in another order than that in which they began.
            self._blocks = [each for each in self._blocks if each is not block]
            self._overrides = dict(self._blocks)

    def _overridden(
        self, task: TaskFunction, overrides: Mapping[Provider, Provider]
    ) -> Mapping[str, Step]:
        found = dependencies_of(task.name, task.function)
        return steps_of(task.name, found, is_async=task.is_async, overrides=overrides)
