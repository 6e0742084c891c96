"""Tasks: functions that can be called, or enqueued with the same arguments.

@app.task(queue="mail", timeout=30)
def send(tenant: str, to: str) -> None: ...

send("acme", "a@b.c")  # runs here, now
send.enqueue("acme", to="a@b.c")  # runs on a worker
send.with_options(delay=60).enqueue("acme", to="a@b.c")  # not before a minute has passed
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeVar, Unpack

from rq_core.app.arguments import Arguments
from rq_core.app.handlers.result_types import Returned
from rq_core.app.handlers.retry import RetryPolicy
from rq_core.app.handles.handle import JobHandle, handle_of
from rq_core.app.options import EnqueueOptions, JobOptions, spelling_out_options
from rq_core.errors import InvalidTask
from rq_core.model.job import NewJob

if TYPE_CHECKING:
    from rq_core.app.handlers.depends import Step
    from rq_core.app.producer import Producer

P = ParamSpec("P")
R = TypeVar("R")

Isolation = Literal["process"]

_ENQUEUE: Final = "enqueue(…) hands over a call, enqueue_async(…) does in an event loop"
_OPTIONS: Final = "with_options(delay=60, …).enqueue(…) hands over a call with options"
_ELSEWHERE: Final = {
    "delay": _ENQUEUE, "send": _ENQUEUE, "defer": _ENQUEUE, "kiq": _ENQUEUE,
    "apply_async": _OPTIONS, "send_with_options": _OPTIONS, "configure": _OPTIONS, "schedule": _OPTIONS,
}  # fmt: skip
"""The methods of other libraries' tasks, by name, with the method to use here."""
_NO_STEPS: Final[Mapping[str, Step]] = MappingProxyType({})


class PreparedTask(Generic[P, R]):
    """A task with the options of its next jobs.

    ``R`` is what the function returns, awaited if it is async.
    """

    def __init__(
        self,
        app: Producer,
        name: str,
        arguments: Arguments,
        options: JobOptions,
        returned: Returned,
    ) -> None:
        self.app = app
        self.name = name
        self.arguments = arguments
        self.returned = returned
        self.options = options
        self.placing = app.declared.placing(name, options.queue)
        """The placing, by which its jobs get their lanes."""
        self._profile = options.profile(name)
        app.declared.check_queue(name, options.queue)
        self.placing.check_delay(options.delay_ms, options.due_ms)

    if not TYPE_CHECKING:  # Type checkers know what a task has.

        def __getattr__(self, name: str) -> Any:
            """Name the method here in the error for another library's name."""
            hint = _ELSEWHERE.get(name)
            words = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(f"{words}: {hint}" if hint else words, name=name, obj=self)

    @spelling_out_options
    def with_options(
        self, *, queue: str | None = None, **options: Unpack[EnqueueOptions]
    ) -> PreparedTask[P, R]:
        """Return this task with other options for its next jobs.

        Raises InvalidName or InvalidOption; InvalidTask if results of such a task cannot be kept.
        """
        changed = self.options.changed(queue=queue, **options)
        if changed.keeps_result and not self.options.keeps_result:
            self.returned.check()
        return PreparedTask(self.app, self.name, self.arguments, changed, self.returned)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return a job for App.enqueue_many, of a call with these arguments.

        Raises ArgumentsInvalid (also for a cap's key that is too long, or more than one value), PayloadTooLarge, and
        InvalidTask if an annotation cannot be used.
        """
        unique, remembered = self.options.unique, self.options.remember_ms
        if not self.placing.sources and unique is None and not remembered:
            return self.app.new_job(self._profile, self.options, self.arguments.dump(args, kwargs))
        values = self.arguments.validate(args, kwargs)
        args_json = self.arguments.dump_valid(values)
        lane = self.placing.lane(self._profile.rank, values)
        name = "" if unique is None else unique.name(self.name, self.arguments, values)
        call = self.options.call_of(self.name, self.arguments, values) if remembered else ""
        return self.app.new_job(self._profile, self.options, args_json, *lane, name, call)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Hand over a call with these arguments to the workers.

        Raises what job raises, what the queue refuses (ScopeFull, UniqueHeld, IdempotencyMismatch,
        ResultsFull, QueueFull, AuditBacklogFull), ServerUnavailable, ServerUnsuitable or OutcomeUnknown. Blocks;
        in an event loop use enqueue_async.
        """
        job = self.job(*args, **kwargs)
        return handle_of(self.app, job, self.app.client.enqueue_one(job))

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """See enqueue. Calls that are under way at the same time share round trips.

        A caller that is cancelled does not take its job back: it is enqueued all the same, unless it was not sent yet.
        """
        job = self.job(*args, **kwargs)
        return handle_of(self.app, job, await self.app.async_client().enqueue_one(job))


class Task(PreparedTask[P, R]):
    """A function that workers can run, by name. Made by ``@app.task``."""

    is_async: bool = False
    """Whether calling the function returns an awaitable."""
    __name__: str
    __wrapped__: Callable[P, Any]

    def __init__(
        self,
        app: Producer,
        name: str,
        function: Callable[P, Any],
        arguments: Arguments,
        options: JobOptions,
        *,
        retry: RetryPolicy,
        timeout: float | None,
        isolation: Isolation | None = None,
        max_memory: int | None = None,
        steps: Mapping[str, Step] = _NO_STEPS,
        aliases: tuple[str, ...] = (),
    ) -> None:
        """``timeout`` is in seconds, ``max_memory`` in bytes. Raises InvalidTask, InvalidName or InvalidOption."""
        returned = Returned(name, function)
        if options.keeps_result:
            returned.check(is_defined=False)
        super().__init__(app, name, arguments, options, returned)
        self.function = function
        self.retry = retry
        self.timeout = timeout
        self.isolation = isolation
        self.max_memory = max_memory
        self.steps = steps
        """The providers of its dependencies, by parameter; usually empty."""
        self.aliases = aliases
        """Other names whose jobs it runs."""
        functools.update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<task {self.name} of queue {self.options.queue}>"

    def lane_of_claim(self, queue: str, lane: str, values: Mapping[str, Any]) -> str | None:
        """Return the lane that a job claimed from ``lane`` belongs into; None if ``lane`` is the right one."""
        placing = self.placing
        if queue != self.options.queue:
            placing = self.app.declared.placing(self.name, queue)
        if not placing.sources:
            return None
        return placing.moved(lane, self._profile.rank, values)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now, as if it were no task. Dependencies that are not given are made, and left."""
        if self.steps:
            made: R = self.app.surroundings.call(self, args, kwargs)
            return made
        result: R = self.function(*args, **kwargs)
        return result


class AsyncTask(Task[P, R]):
    """A task whose function is ``async def``."""

    is_async = True

    def __call__(  # type: ignore[override]  # `R` is what awaiting it gives
        self, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Run the function here and now, as if it were no task; await the result. See Task about dependencies."""
        if self.steps:
            made: Coroutine[Any, Any, R] = self.app.surroundings.call(self, args, kwargs)
            return made
        result: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return result


def module_attribute(module: str, name: str) -> object:
    """Import a module and return its attribute ``name``, which may have dots; None without such an attribute."""
    found: object = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def import_place(task: Task[Any, Any]) -> tuple[str, str]:
    """Return the module and the name by which another process can import the task. Raises InvalidTask."""
    place = task.function.__module__, task.function.__qualname__
    if module_attribute(*place) is not task:
        raise InvalidTask(
            task=task.name,
            why='isolation="process" needs a function at the top of a module, under its own name',
        )
    return place
