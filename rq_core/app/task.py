"""Tasks. A task is a function that a program can call directly, or enqueue with the same arguments.

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
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeVar, Unpack, overload

from rq_core.app.arguments import Arguments
from rq_core.app.handlers.outgoing import outgoing_job
from rq_core.app.handlers.result_types import Returned
from rq_core.app.handlers.retry import RetryPolicy
from rq_core.app.handles.handle import JobHandle, handle_of
from rq_core.app.options import EnqueueOptions, JobOptions, spelling_out_options
from rq_core.errors import InvalidTask
from rq_core.model.job import NewJob

if TYPE_CHECKING:
    from rq_core.app.batches.batch import Batch
    from rq_core.app.durable.items import JobCall
    from rq_core.app.handlers.depends import Step
    from rq_core.app.inbox.within import AsyncExecutes, AsyncTaskWithin, Executes, TaskWithin
    from rq_core.app.limits.breaker import Breaker
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
"""The names of methods that tasks of other libraries have, each with the method of rq-core to use instead."""
_NO_STEPS: Final[Mapping[str, Step]] = MappingProxyType({})


class PreparedTask(Generic[P, R]):
    """A task, with the options of the jobs that are enqueued through this object.

    ``R`` is the type of the function's result. For an async function, it is the type of the awaited result.
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
        """The Placing of the task's jobs, which chooses the lane (the waiting line) of each job."""
        self._profile = options.profile(name)
        app.declared.check_queue(name, options.queue)
        self.placing.check_delay(options.delay_ms, options.due_ms)

    if not TYPE_CHECKING:  # Type checkers know what a task has.

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError. For a method of another library's tasks, the error names the method of rq-core to
            use."""
            hint = _ELSEWHERE.get(name)
            words = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(f"{words}: {hint}" if hint else words, name=name, obj=self)

    @spelling_out_options
    def with_options(
        self, *, queue: str | None = None, **options: Unpack[EnqueueOptions]
    ) -> PreparedTask[P, R]:
        """Return this task with other options. These options hold for jobs that are enqueued through the returned
        object.

        Raises InvalidName or InvalidOption. Raises InvalidTask if results should be kept and JSON cannot express them.
        """
        changed = self.options.changed(queue=queue, **options)
        if changed.keeps_result and not self.options.keeps_result:
            self.returned.check()
        return PreparedTask(self.app, self.name, self.arguments, changed, self.returned)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return a job with these arguments, for App.enqueue_many.

        Raises ArgumentsInvalid for invalid arguments, and if the value for a cap's ``per`` is too long or is not a
        single value. Raises PayloadTooLarge. Raises InvalidTask if an annotation cannot be used.
        """
        unique, remembered = self.options.unique, self.options.remember_ms
        if not self.placing.sources and unique is None and not remembered:
            return self.app.new_job(self._profile, self.options, self.arguments.dump(args, kwargs))
        values = self.arguments.validate(args, kwargs)
        args_json = self.arguments.dump_valid(values)
        lane = self.placing.lane(self._profile.rank, values)
        name = "" if unique is None else unique.name(self.name, self.arguments, values)
        call = self.options.call_of(self.name, self.arguments, values) if remembered else ""
        cost = self.placing.costs(lane[0], values) if self.placing.costly else ""
        return self.app.new_job(self._profile, self.options, args_json, *lane, name, call, cost)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[R]:
        """Return a call with these arguments. A durable job runs it as a child: ``job.run(render.call(7))``."""
        from rq_core.app.durable.items import JobCall

        return JobCall(self, args, kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a job with these arguments, and return the job's handle.

        This method blocks; in an event loop use enqueue_async. Raises the errors of ``job``. If the queue refuses the
        job, raises ScopeFull, UniqueHeld, IdempotencyMismatch, ResultsFull, QueueFull or AuditBacklogFull. If the call
        to the server fails, raises ServerUnavailable, ServerUnsuitable or OutcomeUnknown.
        """
        job = self.job(*args, **kwargs)
        if self.app.outgoing_functions:
            job = outgoing_job(self.app.outgoing_functions, job, "enqueue")
        return handle_of(self.app, job, self.app.client.enqueue_one(job))

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a job with these arguments, and return the job's handle. See enqueue. Concurrent calls share round
        trips to Redis.

        If the caller is cancelled before the call is sent to Redis, no job is enqueued. If the caller is cancelled
        later, the job is enqueued nevertheless.
        """
        job = self.job(*args, **kwargs)
        if self.app.outgoing_functions:
            job = outgoing_job(self.app.outgoing_functions, job, "enqueue")
        return handle_of(self.app, job, await self.app.async_client().enqueue_one(job))

    @overload
    def within(self, connection: AsyncExecutes, /) -> AsyncTaskWithin[P, R]: ...
    @overload
    def within(self, connection: Executes | str, /) -> TaskWithin[P, R]: ...
    def within(self, connection: Any, /) -> Any:
        """Return an object that enqueues jobs in the transaction of a database connection:
        ``send.within(session).enqueue(…)``.

        A job is first a row of the table ``rqc_inbox``. After the commit, a process called the relay hands the job over
        to the queue, exactly once. ``connection`` is a Session, an AsyncSession, a Connection or an AsyncConnection of
        SQLAlchemy; a connection of psycopg (sync or async), asyncpg or sqlite3; or the alias of a database of Django,
        as text. Raises InvalidOption.
        """
        from rq_core.app.inbox.within import task_within

        return task_within(self, connection)


class Task(PreparedTask[P, R]):
    """A function that workers can run by its name. ``@app.task`` makes tasks."""

    is_async: bool = False
    """True if the function, or the ``__call__`` of a callable object, is declared with ``async def``."""
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
        batch: Batch | None = None,
        returned: Returned | None = None,
        breakers: tuple[Breaker, ...] = (),
    ) -> None:
        """``timeout`` is in seconds, ``max_memory`` in bytes. Raises InvalidTask, InvalidName or InvalidOption."""
        returned = returned or Returned(name, function)
        if options.keeps_result:
            returned.check(is_defined=False)
        super().__init__(app, name, arguments, options, returned)
        self.function = function
        self.retry = retry
        self.timeout = timeout
        self.isolation = isolation
        self.max_memory = max_memory
        self.steps = steps
        """The planned calls of the providers, functions that make the values of the task's dependencies, by parameter;
        usually empty."""
        self.aliases = aliases
        """Former names of the task. The task also runs jobs that were enqueued under these names."""
        self.batch = batch
        """The options of a batch task, whose function runs several jobs in one call; None for other tasks."""
        self.breakers = breakers
        functools.update_wrapper(self, function)

    def excepted(self, error: BaseException) -> str:
        """Return the task's breakers that do not count this error: their families (names such as
        ``ask.host@60s:failures``), joined by spaces."""
        if not self.breakers:
            return ""
        from rq_core.app.limits.breaker import excepted_by

        return excepted_by(self.breakers, self.name, error)

    def __repr__(self) -> str:
        return f"<task {self.name} of queue {self.options.queue}>"

    def lane_of_claim(self, queue: str, lane: str, values: Mapping[str, Any]) -> str | None:
        """Return the lane (waiting line) into which a claimed job must move, because its producer did not know the
        task's present caps. Return None if ``lane`` is right for the job."""
        placing = self.placing
        if queue != self.options.queue:
            placing = self.app.declared.placing(self.name, queue)
        if not placing.sources:
            return None
        return placing.moved(lane, self._profile.rank, values)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, without a job, and return its result.

        Dependencies that the caller leaves out are entered before the call and left after it. The function of a batch
        task is called with a list of one job.
        """
        if self.batch is not None:
            one: R = call_with_one_job(self, args, kwargs)
            return one
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
        """Call the function directly, without a job. The caller awaits the result. See Task.__call__."""
        if self.batch is not None:
            one: Coroutine[Any, Any, R] = call_with_one_job(self, args, kwargs)
            return one
        if self.steps:
            made: Coroutine[Any, Any, R] = self.app.surroundings.call(self, args, kwargs)
            return made
        result: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return result


def call_with_one_job(task: Task[Any, Any], args: Any, kwargs: Any) -> Any:
    """Call the function of a batch task with one job that has these arguments. Return the job's result.

    For an async task, return a coroutine that returns the result. Raises the exception with which the function fails
    the job.
    """
    from rq_core.app.batches.jobs import Job, result_of_one

    job = Job(task.arguments.validate(args, kwargs).made)  # type: ignore[attr-defined]
    found = task.app.surroundings.call(task, ([job],), {})
    return result_of_one(job, found, is_async=task.is_async)


def module_attribute(module: str, name: str) -> object:
    """Import a module and return its attribute ``name``. Return None if there is no such attribute.

    ``name`` may contain dots, as ``Class.method``.
    """
    found: object = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def import_place(task: Task[Any, Any]) -> tuple[str, str]:
    """Return the module and the qualified name by which another process can import the task. Raises InvalidTask."""
    place = task.function.__module__, task.function.__qualname__
    if module_attribute(*place) is not task:
        raise InvalidTask(
            task=task.name,
            why='isolation="process" needs a function at the top of a module, under its own name',
        )
    return place
