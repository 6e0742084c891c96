"""Calls a handler inside the app's ``around`` functions, with the values of its dependencies. Tests may override
dependencies."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncContextDecorator, AsyncExitStack, ContextDecorator, contextmanager
from types import AsyncGeneratorType, GeneratorType, TracebackType
from typing import Any, Final, Protocol, TypeVar

from rq_core.app.handlers.context import JobContext
from rq_core.app.handlers.depends import (
    Provider,
    Step,
    dependencies_of,
    has_no_dependencies,
    is_async,
    makes_managers,
    name_of,
    planned_steps,
)
from rq_core.errors import InvalidOption, InvalidTask, UsageError

_NO_STEPS: Final[Mapping[str, Step]] = {}

# A handler runs inside of the app's arounds, outermost, and the task's dependencies.
#
# They are left in the reverse order, also after an exception of the handler, and before the worker reports the job's
# end. Each sees the handler's exception while it is left, and may raise another one in its place; it cannot suppress
# one.
#
# One coroutine serves both kinds of handlers. Around a ``def`` handler it awaits nothing, so one step in the handler's
# thread completes it (:func:`now`).


def _makes_manager(function: Any) -> bool:
    """Return whether ``function`` makes a context manager or a generator. The type of ``function`` decides; it is not
    called."""
    if not inspect.isroutine(inspect.unwrap(function)):
        # A class, an object that is called, or a partial of either.
        return makes_managers(function) or not isinstance(function, type)
    called = inspect.unwrap(function)
    return inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called)


class Around:
    """A context manager around every handler of an app. It receives the exception that the handler raises.

        @app.around
        @contextmanager
        def timed(job: JobContext) -> Iterator[None]:
            began = time.monotonic()
            yield
            statistics.observe(job.task, time.monotonic() - began)

    The constructor raises InvalidOption for a function that makes no context manager.
    """

    def __init__(self, function: Callable[[JobContext], Any]) -> None:
        self.function = function
        self.name = name_of(function)
        self.is_async = is_async(function) and not inspect.iscoroutinefunction(function)
        try:
            inspect.signature(function).bind(None)
        except TypeError as error:
            raise InvalidOption.of(
                "around", function, f"must take one argument, the job ({error})"
            ) from None
        if inspect.iscoroutinefunction(function):
            raise InvalidOption.of(
                "around", function, "must yield once, and is a coroutine function"
            )
        if dependencies_of("around", function):
            raise InvalidOption.of(
                "around", function, "must take the job only: it gets no dependencies"
            )
        if not _makes_manager(function):
            raise InvalidOption.of(
                "around",
                function,
                "must yield once, around the handler: it is a plain function. Write a generator, or what"
                " contextmanager makes of one",
            )

    def check(self, task: str, *, is_async: bool) -> None:
        """Raise InvalidTask if the task is a ``def`` function and this context manager is async."""
        if self.is_async and not is_async:
            raise InvalidTask(
                task=task,
                why=f"it is a `def` function, and the around {self.name} is async, so it cannot run in the"
                " handler's thread: write the around without async",
            )


T = TypeVar("T")

_ASYNC: Final = "it is async, and a `def` handler needs it"


class ProcessValues(Protocol):
    """Makes and keeps the values of dependencies that live as long as the process. See
    :mod:`rq_core.app.handlers.process_scope`."""

    async def value(self, step: Step, *, awaits: bool) -> Any:
        """Return the value of a dependency. ``step`` is the planned call of its provider. If ``awaits`` is false, the
        call blocks the caller's thread."""


class Entered:
    """The context managers that were entered for one call of a handler, and the values of its dependencies. Each
    provider is called once.

    ``awaits`` is true on an event loop. If ``awaits`` is false, each coroutine must complete without awaiting anything.
    """

    def __init__(
        self, stack: AsyncExitStack, resources: ProcessValues | None, *, awaits: bool
    ) -> None:
        """``resources`` keeps the values of the dependencies with ``scope="process"`` until the process ends.

        Without ``resources``, these values are kept only until ``stack`` is closed.
        """
        self._stack = stack
        self._resources = resources
        self._awaits = awaits
        self._values: dict[Step, Any] = {}

    async def value(self, step: Step) -> Any:
        """Return the value of a dependency. ``step`` is the planned call of its provider. The provider is called only
        once."""
        if step not in self._values:
            if step.scope == "process" and self._resources is not None:
                self._values[step] = await self._resources.value(step, awaits=self._awaits)
            else:
                self._values[step] = await self.make(step)
        return self._values[step]

    async def make(self, step: Step) -> Any:
        """Call the provider of a dependency with the values that it needs, and return its value. See ``enter`` for a
        provider that returns a context manager."""
        needs = {name: await self.value(each) for name, each in step.needs.items()}
        return await self.enter(
            step.provider, needs, f"dependency {name_of(step.provider)}", owned=step.owned
        )

    async def enter(
        self,
        provider: Callable[..., Any],
        needs: Mapping[str, Any],
        what: str,
        *,
        owned: bool,
        args: Sequence[Any] = (),
    ) -> Any:
        """Call a provider, and return the value for the handler. A context manager that the provider returns is
        entered.

        If ``owned`` is false, only generators and context managers of contextlib's decorators are entered. Any other
        context manager is returned without entering it, since other code may use it. If the provider or its context
        manager raises an exception, a note on the exception names the provider as ``what``.
        """
        try:
            made = provider(*args, **needs)
            if inspect.iscoroutine(made):
                made = await self._awaited(made)
            made = _of_generator(made)
            # Context managers of contextmanager and asynccontextmanager are of these classes.
            entered = owned or isinstance(made, ContextDecorator | AsyncContextDecorator)
            return await self._enter(made, what) if entered else made
        except BaseException as error:
            error.add_note(f"(raised while entering the {what})")
            raise

    async def _awaited(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._awaits:
            return await coroutine
        coroutine.close()
        raise UsageError(_ASYNC)

    async def _enter(self, manager: Any, what: str) -> Any:
        kind = type(manager)
        if self._awaits and hasattr(kind, "__aenter__"):
            value = await kind.__aenter__(manager)
            self._stack.push_async_exit(_leaving_async(manager, what))
        elif hasattr(kind, "__enter__"):
            value = kind.__enter__(manager)
            self._stack.push(_leaving(manager, what))
        elif hasattr(kind, "__aenter__"):
            raise UsageError(_ASYNC)
        else:
            raise UsageError(f"it gives no context manager but {kind.__name__}")
        return value


def _of_generator(made: Any) -> Any:
    """Make a context manager of a generator. Return any other object unchanged."""
    if isinstance(made, GeneratorType):
        return contextlib.contextmanager(lambda: made)()
    if isinstance(made, AsyncGeneratorType):
        return contextlib.asynccontextmanager(lambda: made)()
    return made


def _leaving(
    manager: Any, what: str
) -> Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], bool]:
    def leave(
        kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            type(manager).__exit__(manager, kind, error, trace)
        except BaseException as raised:
            _note(raised, error, what)
            raise
        return False

    return leave


def _leaving_async(
    manager: Any, what: str
) -> Callable[
    [type[BaseException] | None, BaseException | None, TracebackType | None], Awaitable[bool]
]:
    async def leave(
        kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            await type(manager).__aexit__(manager, kind, error, trace)
        except BaseException as raised:
            _note(raised, error, what)
            raise
        return False

    return leave


def _note(raised: BaseException, error: BaseException | None, what: str) -> None:
    if raised is not error:
        raised.add_note(f"(raised while leaving the {what})")


async def call_surrounded(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    is_async: bool,
    steps: Mapping[str, Step],
    arounds: Sequence[Around] = (),
    job: JobContext | None = None,
    resources: ProcessValues | None = None,
) -> Any:
    """Call a function inside the ``around`` functions, with the values of its dependencies. Return the function's
    result.

    ``steps`` are the calls of providers that make these values, by the function's parameter. The caller leaves out
    ``job`` and ``arounds`` for the function of a durable job's step, and for a call that no worker makes.
    """
    async with AsyncExitStack() as stack:
        entered = Entered(stack, resources, awaits=is_async)
        for around in arounds:
            await entered.enter(
                around.function, {}, f"around {around.name}", owned=True, args=(job,)
            )
        given = {name: await entered.value(step) for name, step in steps.items()}
        if job is not None and not is_async:
            # A thread is not interrupted: the timeout may have passed while its dependencies were entered.
            job.raise_if_cancelled()
        result = function(*args, **kwargs, **given)
        if is_async:
            result = await result
        if job is not None:
            job.raise_if_too_late()
        return result


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits nothing, without an event loop. Return its result."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    coroutine.close()
    raise AssertionError("it awaits something")


class TaskFunction(Protocol):
    """The attributes of a task that this module reads."""

    @property
    def name(self) -> str: ...
    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def is_async(self) -> bool: ...
    @property
    def steps(self) -> Mapping[str, Step]: ...


class Surroundings:
    """The ``around`` functions of an app, and the overrides of its dependencies."""

    def __init__(self) -> None:
        self.arounds: list[Around] = []
        """The context managers of the ``around`` functions, the outermost first."""
        self._overrides: dict[Provider, Provider] = {}
        self._blocks: list[tuple[Provider, Provider]] = []
        """The overrides in force, the newest last."""

    def add(self, function: Callable[[JobContext], Any], tasks: Iterable[TaskFunction]) -> None:
        """Add an ``around`` function for every handler. Raises InvalidOption.

        Raises InvalidTask if the function is async and one of ``tasks`` is a ``def`` function.
        """
        around = Around(function)
        for task in tasks:
            around.check(task.name, is_async=task.is_async)
        self.arounds.append(around)

    def check(self, task: str, *, is_async: bool) -> None:
        """Raise InvalidTask if the task is a ``def`` function and one of the ``around`` functions is async."""
        for around in self.arounds:
            around.check(task, is_async=is_async)

    def steps_of(self, task: TaskFunction) -> Mapping[str, Step]:
        """Return the planned calls of the providers that make the values of a task's dependencies. The overrides in
        force replace providers."""
        return self._overridden(task, self._overrides) if self._overrides else task.steps

    def needs_of(
        self, owner: str, function: Callable[..., Any], *, is_async: bool
    ) -> Mapping[str, Step]:
        """Return the planned calls of the providers that make the values of a function's dependencies. The overrides in
        force replace providers.

        Raises InvalidTask.
        """
        # A TypeError: the function has no hash. An InvalidTask must name this owner.
        with contextlib.suppress(TypeError, InvalidTask):
            if has_no_dependencies(function):
                return _NO_STEPS
        found = dependencies_of(owner, function)
        return planned_steps(owner, found, is_async=is_async, overrides=self._overrides)

    def wrap(
        self, task: TaskFunction, job: JobContext, resources: ProcessValues
    ) -> Callable[..., Any]:
        """Return a function that calls a task's function inside the ``around`` functions, with its dependencies.

        The worker calls the returned function with the job's arguments.
        """
        running = functools.partial(
            call_surrounded,
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
        """Call a task's function directly, without a job. Providers are called only for dependencies that the caller
        leaves out."""
        given = inspect.signature(task.function).bind_partial(*args, **kwargs).arguments
        steps = {name: step for name, step in self.steps_of(task).items() if name not in given}
        called = call_surrounded(task.function, args, kwargs, is_async=task.is_async, steps=steps)
        return called if task.is_async else now(called)

    @contextmanager
    def override(
        self, provider: Provider, other: Provider, tasks: Iterable[TaskFunction]
    ) -> Iterator[None]:
        """Call the provider ``other`` in place of ``provider`` within a block. Raises InvalidOption or InvalidTask."""
        for each in (provider, other):
            if not callable(each):
                raise InvalidOption.of(
                    "override",
                    each,
                    "must get functions or classes: the one that"
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
        return planned_steps(task.name, found, is_async=task.is_async, overrides=overrides)
