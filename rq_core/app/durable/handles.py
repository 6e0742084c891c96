"""``durable`` and ``durable_sync``: a handler calls them for the steps of its job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar, overload

from rq_core.app.durable.children import JobSteps
from rq_core.app.durable.items import Items, JobCall, task_name_of
from rq_core.app.durable.moments import ahead, moment
from rq_core.app.durable.step_values import check_brought, load_brought
from rq_core.app.durable.steps import StepOptions, in_step
from rq_core.app.handlers.context import JobContext, current_job
from rq_core.app.handlers.handler_setup import now
from rq_core.errors import NotDurable

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class Durable:
    """The steps of a job whose handler is an ``async def`` function."""

    def __init__(self, steps: JobSteps, options: StepOptions = StepOptions()) -> None:  # noqa: B008 - it is immutable
        self._steps = steps
        self._options = options

    def options(
        self,
        *,
        key: str = "",
        check: Callable[..., Any] | None = None,
        undo: Callable[[Any], Any] | None = None,
        begin: bool = False,
    ) -> Durable:
        """Return an object for steps of the same job, with options. The options hold for each step that is run through
        this object.

        - ``key`` distinguishes steps with the same name that run at the same time.
        - ``check`` is a function that finds out whether a step has happened. It is called if an earlier run has begun
          the step but not saved it. It gets the step's arguments. It returns the step's value, or NOT_DONE if the step
          has not happened.
        - ``undo`` is called by :meth:`undo`, with the step's value.
        - ``begin``: if true, Redis records that the step has begun. With ``check``, Redis always records it.
        """
        return Durable(self._steps, StepOptions(key, check, undo, begin))

    @overload
    def step(
        self, name: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]: ...
    @overload
    def step(
        self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]: ...
    def step(self, name: str, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Return the value of the step ``name``. If no earlier run has saved it, call ``fn`` and save the value that it
        returns.

        In both cases, the value is read back from JSON. A plain function is called in a thread.
        """
        return self._steps.step(name, fn, args, kwargs, self._options)

    async def sleep(
        self,
        name: str,
        seconds: float | timedelta | None = None,
        *,
        hours: float | None = None,
        until: datetime | None = None,
    ) -> None:
        """Park the job: it occupies no worker while it sleeps. Its handler runs again after ``seconds`` (or a
        timedelta), after ``hours``, or at ``until`` (a datetime with a time zone).

        The first run that reaches the sleep fixes the end of the sleep. Later runs of the handler do not begin the
        sleep again.
        """
        await self._steps.wait("sleep", name, moment(name, seconds, hours, until))

    @overload
    def wait(self, name: str, kind: type[T], /, *, timeout: None = None) -> Awaitable[T]: ...
    @overload
    def wait(
        self, name: str, kind: type[T], /, *, timeout: float | timedelta
    ) -> Awaitable[T | None]: ...
    def wait(self, name: str, kind: Any, /, *, timeout: float | timedelta | None = None) -> Any:
        """Return the value of this job's next signal ``name``, converted to the type ``kind``.

        If no signal of this name has arrived, the job is parked until one arrives. ``timeout`` is in seconds, or a
        timedelta, and begins when the job first waits. If no signal arrives in this time, the method returns None.
        """
        return wait_for(self._steps, name, kind, timeout)

    async def run(self, child: JobCall[R], /, *, name: str = "") -> R:
        """Run another job, a child of this job, and return the child's result: ``await job.run(render.call(7))``.

        This job is parked until the child has ended. ``name`` is the name under which Redis keeps the child's result;
        by default, the name of the child's task. Raises ChildrenFailed if the child does not succeed.
        """
        (value,) = (await self._steps.map(name or task_name_of(child), (child,), 1)).values()
        return value

    async def map(
        self, name: str, calls: Iterable[JobCall[R]], /, *, min_success: float = 1.0
    ) -> Items[R]:
        """Run other jobs, the children of this job. Return one item for each child, once all children have ended.

        For example: ``await job.map("pages", (render.call(i) for i in range(200)))``. This job is parked meanwhile.

        ``min_success`` is how many children must succeed: a share (a float from 0.0 to 1.0), or a number (an int).
        Raises ChildrenFailed if fewer children succeed. The calls must be the same at each run of this job.
        """
        return await self._steps.map(name, calls, min_success)

    def key(self, name: str) -> Awaitable[str]:
        """Return a key by which another service can recognize a repeated request: 32 hex digits.

        Each run of this job gets the same key for the same ``name``.
        """
        return self._steps.key(name)

    def undo(self) -> Awaitable[None]:
        """Call the ``undo`` functions of the saved steps that this run has reached, the newest step first.

        Each call is a step itself.
        """
        return self._steps.undo()


class DurableSync:
    """The steps of a job whose handler is a ``def`` function."""

    def __init__(self, steps: JobSteps, options: StepOptions = StepOptions()) -> None:  # noqa: B008 - it is immutable
        self._steps = steps
        self._options = options

    def options(
        self,
        *,
        key: str = "",
        check: Callable[..., Any] | None = None,
        undo: Callable[[Any], Any] | None = None,
        begin: bool = False,
    ) -> DurableSync:
        """Return an object for steps of the same job, with options. See :meth:`Durable.options`."""
        return DurableSync(self._steps, StepOptions(key, check, undo, begin))

    def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the value of the step ``name``. If no earlier run has saved it, call ``fn`` and save the value that it
        returns.

        In both cases, the value is read back from JSON.
        """
        value: T = now(self._steps.step(name, fn, args, kwargs, self._options))
        return value

    def sleep(
        self,
        name: str,
        seconds: float | timedelta | None = None,
        *,
        hours: float | None = None,
        until: datetime | None = None,
    ) -> None:
        """Park the job for a time. See :meth:`Durable.sleep`."""
        now(self._steps.wait("sleep", name, moment(name, seconds, hours, until)))

    @overload
    def wait(self, name: str, kind: type[T], /, *, timeout: None = None) -> T: ...
    @overload
    def wait(self, name: str, kind: type[T], /, *, timeout: float | timedelta) -> T | None: ...
    def wait(self, name: str, kind: Any, /, *, timeout: float | timedelta | None = None) -> Any:
        """Return the value of this job's next signal ``name``. See :meth:`Durable.wait`."""
        return now(wait_for(self._steps, name, kind, timeout))

    def run(self, child: JobCall[R], /, *, name: str = "") -> R:
        """Run another job, a child of this job, and return the child's result. See :meth:`Durable.run`."""
        (value,) = now(self._steps.map(name or task_name_of(child), (child,), 1)).values()
        return value

    def map(
        self, name: str, calls: Iterable[JobCall[R]], /, *, min_success: float = 1.0
    ) -> Items[R]:
        """Run other jobs, the children of this job. Return one item for each child, once all have ended. See
        :meth:`Durable.map`."""
        return now(self._steps.map(name, calls, min_success))

    def key(self, name: str) -> str:
        """Return a key by which another service can recognize a repeated request: 32 hex digits.

        Each run of this job gets the same key for the same ``name``.
        """
        return now(self._steps.key(name))

    def undo(self) -> None:
        """Call the ``undo`` functions of the saved steps that this run has reached, the newest step first.

        Each call is a step itself.
        """
        now(self._steps.undo())


async def wait_for(
    steps: JobSteps,
    name: str,
    kind: Any,
    timeout: float | timedelta | None,  # noqa: ASYNC109 - Redis keeps it
) -> Any:
    """Wait for a signal, and return its value, converted to the type ``kind``. Return None after the timeout."""
    brought = check_brought(name, kind)
    entry = await steps.wait("wait", name, ahead(name, timeout))
    return None if entry.value is None else load_brought(entry.name, brought, entry.value)


def durable() -> Durable:
    """Return the object for the steps of the current job. Call this function in an ``async def`` handler.

    Raises NoCurrentJob outside of a handler, and NotDurable where no steps can be saved.
    """
    return Durable(_steps_of("durable()", current_job(), is_async=True))


def durable_sync() -> DurableSync:
    """Return the object for the steps of the current job. Call this function in a ``def`` handler.

    Raises NoCurrentJob outside of a handler, and NotDurable where no steps can be saved.
    """
    return DurableSync(_steps_of("durable_sync()", current_job(), is_async=False))


def _steps_of(call: str, job: JobContext, *, is_async: bool) -> JobSteps:
    if in_step.get():
        raise NotDurable(call=call, why="a step's function runs here, and it must do all by itself")
    if job.home is None:
        raise NotDurable(call=call, why=job.why_no_steps)
    if job.steps is None:
        home = job.home(job)
        if home is None:
            raise NotDurable(call=call, why=job.why_ended)
        job.steps = JobSteps(job, home)
    found: JobSteps = job.steps
    if found.home.is_async is not is_async:
        other = "durable_sync()" if is_async else "durable()"
        raise NotDurable(
            call=call,
            why=f"the handler is {'a `def`' if is_async else 'an `async def`'} function: use {other}",
        )
    return found
