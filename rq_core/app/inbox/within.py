"""The objects that ``task.within(connection)`` and ``app.within(connection)`` return.

with Session(engine) as session, session.begin():
    session.add(order := Order(...))
    session.flush()
    handle = send.within(session).enqueue(order_id=order.id)  # one INSERT; the id is known now
    app.within(session).enqueue_many(index.job(i) for i in ids)  # one INSERT of many rows
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
)

from rq_core.app.arguments import dump_untyped
from rq_core.app.handlers.outgoing import outgoing_job, outgoing_jobs
from rq_core.app.handles.handle import JobHandle
from rq_core.app.inbox.doors import AsyncDoor, Door, door_to
from rq_core.app.inbox.rows import Row, Statements, delete_row, inserts, row_by_name, row_of
from rq_core.app.options import EnqueueOptions, JobOptions, spelling_out_options
from rq_core.errors import InboxMissing, InvalidOption
from rq_core.model.job import KEEP_TIE, NewJob

if TYPE_CHECKING:
    from rq_core.app.producer import Producer

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
OwnJob = Callable[..., NewJob | None]
"""A function that makes a job from a queue, task, args, keys and options. It returns None if the app does not have
the task."""


class AsyncExecutes(Protocol):
    """A connection to a database whose ``execute`` is awaited."""

    @property
    def execute(self) -> Callable[..., Coroutine[Any, Any, Any]]: ...


class Executes(Protocol):
    """A connection to a database, or a session, whose ``execute`` blocks."""

    @property
    def execute(self) -> Callable[..., Any]: ...


class Prepares(Protocol[P, R_co]):
    """The attributes of a PreparedTask that this module uses."""

    app: Producer

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob: ...


class _Producing:
    """Base class of the objects that enqueue jobs within a transaction: ``task.within(…)`` and ``app.within(…)`` return
    them."""

    _is_async = False

    def __init__(self, app: Producer, door: Any, of: Any) -> None:
        """``of`` is the task whose jobs are enqueued. For ``app.within``, ``of`` is the function that makes a job from
        a task's name."""
        self._app = app
        self._door = door
        self._of = of

    if not TYPE_CHECKING:  # Type checkers know what the object has.

        def __getattr__(self, name: str) -> Any:
            """Raise InvalidOption for a method that fits only the other kind of connection: blocking methods such as
            ``cancel`` need a blocking connection, and methods such as ``cancel_async`` need an asynchronous one.

            Raise AttributeError for any other name.
            """
            twin = f"{name}_async" if self._is_async else name.removesuffix("_async")
            if twin != name and hasattr(type(self), twin):
                must = f"the connection blocks: call {twin}(…), without await"
                if self._is_async:
                    must = f"the connection is asynchronous: await {twin}(…)"
                raise InvalidOption.of("method", name, must)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@dataclass(frozen=True)
class _WakeUp:
    """A function object that wakes the process that reads the inbox (the relay) when it is called. If equal objects are
    registered for one transaction, a session of SQLAlchemy calls only one of them."""

    app: Producer
    queues: frozenset[str]

    def __call__(self) -> None:
        self.app.wake_relay(*self.queues)


class _Blocking(_Producing):
    """Base class of the objects that enqueue jobs within the transaction of a blocking connection."""

    _door: Door

    def enqueue_many(self, jobs: Iterable[NewJob]) -> tuple[str, ...]:
        """Insert a row for each job into the inbox table, and return the jobs' ids in the same order. ``task.job(…)``
        makes a job.

        All jobs are checked before the first INSERT. An INSERT has up to 5,000 rows. Raises InvalidOption,
        NotInTransaction and InboxMissing.
        """
        given = checked(jobs)
        if self._app.outgoing_functions:
            given = outgoing_jobs(self._app.outgoing_functions, given, "inbox_many")
        rows = [row_of(each) for each in given]
        self._insert(rows)
        return tuple([row.job_id for row in rows])

    def cancel(self, handle: JobHandle[Any]) -> str:
        """Delete the job's row in the inbox table, within the transaction, and return the outcome.

        - ``cancelled``: the row is deleted, unless the transaction is rolled back.
        - ``relaying``: a relay is handing the job over to Redis now. After the handover, handle.cancel() can cancel the
          job in its queue.
        - ``gone``: the inbox has no row of the job.

        On PostgreSQL the transaction's isolation level must be READ COMMITTED.
        """
        door = self._door
        door.open()
        return str(self._drive(delete_row(door.dialect, handle.queue, handle.id)))

    def _insert(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        door = self._door
        door.open()
        self._drive(inserts(door.dialect, rows))
        door.after_commit(_WakeUp(self._app, frozenset(row.queue for row in rows)))

    def _drive(self, statements: Statements) -> Any:
        answer: Any = None
        try:
            while True:
                answer = self._door.run(*statements.send(answer))
        except StopIteration as end:
            return end.value
        except Exception as error:
            raise_if_missing(self._app, self._door, error)
            raise


class _Awaited(_Producing):
    """Base class of the objects that enqueue jobs within the transaction of an asynchronous connection."""

    _is_async = True
    _door: AsyncDoor

    async def enqueue_many_async(self, jobs: Iterable[NewJob]) -> tuple[str, ...]:
        """Insert a row for each job into the inbox table, and return the jobs' ids in the same order. ``task.job(…)``
        makes a job.

        All jobs are checked before the first INSERT. An INSERT has up to 5,000 rows. Raises InvalidOption,
        NotInTransaction and InboxMissing.
        """
        given = checked(jobs)
        if self._app.outgoing_functions:
            given = outgoing_jobs(self._app.outgoing_functions, given, "inbox_many")
        rows = [row_of(each) for each in given]
        await self._insert(rows)
        return tuple([row.job_id for row in rows])

    async def cancel_async(self, handle: JobHandle[Any]) -> str:
        """Delete the job's row in the inbox table, within the transaction. Return ``cancelled``, ``relaying`` or
        ``gone``; see Within.cancel."""
        door = self._door
        await door.open()
        return str(await self._drive(delete_row(door.dialect, handle.queue, handle.id)))

    async def _insert(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        door = self._door
        await door.open()
        await self._drive(inserts(door.dialect, rows))
        door.after_commit(_WakeUp(self._app, frozenset(row.queue for row in rows)))

    async def _drive(self, statements: Statements) -> Any:
        answer: Any = None
        try:
            while True:
                answer = await self._door.run(*statements.send(answer))
        except StopIteration as end:
            return end.value
        except Exception as error:
            raise_if_missing(self._app, self._door, error)
            raise


class TaskWithin(_Blocking, Generic[P, R]):
    """Enqueues jobs of a task within the transaction of a blocking connection."""

    _of: Prepares[P, R]

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Insert a row for a job with these arguments into ``rqc_inbox``, and return the job's handle.

        After the commit, a process called the relay hands the job over to the queue. After a rollback there is no job.
        The queue decides only at the handover whether the job is a duplicate, and whether another job holds the job's
        name.

        Raises the errors of PreparedTask.job, NotInTransaction and InboxMissing. Raises InvalidOption for a job that
        the queue might reject.
        """
        job = self._of.job(*args, **kwargs)
        if self._app.outgoing_functions:
            job = outgoing_job(self._app.outgoing_functions, job, "inbox")
        self._insert([row_of(job)])
        return handle_in_inbox(self._app, job)


class AsyncTaskWithin(_Awaited, Generic[P, R]):
    """Enqueues jobs of a task within the transaction of an asynchronous connection."""

    _of: Prepares[P, R]

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Insert a row for a job with these arguments, and return the job's handle. See TaskWithin.enqueue."""
        job = self._of.job(*args, **kwargs)
        if self._app.outgoing_functions:
            job = outgoing_job(self._app.outgoing_functions, job, "inbox")
        await self._insert([row_of(job)])
        return handle_in_inbox(self._app, job)


class Within(_Blocking):
    """Enqueues jobs of an app within the transaction of a blocking connection."""

    _of: OwnJob

    @spelling_out_options
    def enqueue(
        self,
        queue: str,
        task: str,
        args: Mapping[str, Any] | None = None,
        *,
        keys: Mapping[str, str] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> JobHandle[Any]:
        """Insert a row for a job of the task with this name, and return the job's handle. See App.enqueue and
        TaskWithin.

        This method does not read from Redis. If this process lacks the task's code, the process that reads the inbox
        (the relay) applies the options and caps that workers have registered. If the row does not fit them, the relay
        parks the row for an operator.
        """
        row, handle = _by_name(self._app, self._of, queue, task, args, keys, options)
        self._insert([row])
        return handle


class AsyncWithin(_Awaited):
    """Enqueues jobs of an app within the transaction of an asynchronous connection."""

    _of: OwnJob

    @spelling_out_options
    async def enqueue_async(
        self,
        queue: str,
        task: str,
        args: Mapping[str, Any] | None = None,
        *,
        keys: Mapping[str, str] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> JobHandle[Any]:
        """Insert a row for a job of the task with this name, and return the job's handle. See Within.enqueue."""
        row, handle = _by_name(self._app, self._of, queue, task, args, keys, options)
        await self._insert([row])
        return handle


def task_within(task: Any, connection: object) -> Any:
    """Return the object that enqueues the jobs of one task within the transaction of ``connection``.

    Raises InvalidOption if ``connection`` is no connection of a known library.
    """
    door = door_to(connection)
    return (AsyncTaskWithin if door.is_async else TaskWithin)(task.app, door, task)


def app_within(app: Producer, own_job: OwnJob, connection: object) -> Any:
    """Return the object that enqueues the jobs of an app within the transaction of ``connection``.

    Raises InvalidOption if ``connection`` is no connection of a known library.
    """
    door = door_to(connection)
    return (AsyncWithin if door.is_async else Within)(app, door, own_job)


def checked(jobs: Iterable[NewJob]) -> Iterable[NewJob]:
    """Yield the jobs unchanged. Raises InvalidOption for an object that is not a job."""
    for job in jobs:
        given: object = job
        if not isinstance(given, NewJob):
            must = "must be jobs, each as task.job(…) or app.job(…) makes it"
            raise InvalidOption.of("jobs", type(given), must)
        yield job


def handle_in_inbox(app: Producer, job: NewJob) -> JobHandle[Any]:
    """Return the handle of a job whose row was inserted into the inbox."""
    return JobHandle(
        app,
        id=job.id,
        queue=job.queue,
        task=job.profile.task,
        keeps=KEEP_TIE in job.ties,
        may_be_in_inbox=True,
    )


def _by_name(
    app: Producer,
    own_job: OwnJob,
    queue: str,
    task: str,
    args: Mapping[str, Any] | None,
    keys: Mapping[str, str] | None,
    options: EnqueueOptions,
) -> tuple[Row, JobHandle[Any]]:
    job = own_job(queue, task, args, keys, options)
    known = job is not None
    if job is None:
        given = JobOptions(queue).changed(queue=queue, **options)
        args_json = dump_untyped(task, {} if args is None else args)
        job = app.new_job(given.profile(task), given, args_json)
    if app.outgoing_functions:
        job = outgoing_job(app.outgoing_functions, job, "inbox")
    if known:
        return row_of(job), handle_in_inbox(app, job)
    return row_by_name(job, options, keys), handle_in_inbox(app, job)


_NO_TABLE: Final = "42P01"
"""PostgreSQL's code for a table that does not exist."""


def raise_if_missing(app: Producer, door: object, error: BaseException) -> None:
    """Raise InboxMissing if a driver's error, or an error that caused it, says that a table of the inbox is missing.

    For a database of Django, the error names Django's command that creates the tables.
    """
    each: BaseException | None = error
    while each is not None:
        code = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if code == _NO_TABLE or "no such table: rqc_" in str(each):
            url = app.inbox_url or "URL"
            raise (
                door.missing(url) if hasattr(door, "missing") else InboxMissing(url=url)
            ) from error
        each = getattr(each, "orig", None) or each.__cause__
