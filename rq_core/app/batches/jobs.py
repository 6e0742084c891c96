"""The jobs that a batch handler receives, and the context of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from rq_core.app.handlers.context import JobContext
from rq_core.errors import UsageError
from rq_core.model.lib.text import counted
from rq_core.signals import MemberFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

A = TypeVar("A")

_OF_ONE_JOB: Final = ("id", "claim", "failures", "losses", "fence", "headers", "base", "lane")
"""The attributes of a JobContext that a batch does not have."""


class Job(Generic[A]):
    """One job of a batch, which a batch handler receives.

    ``args`` are the job's arguments. ``context`` is the job's JobContext, with the job's id, failures and headers. To
    call a batch handler in a test, make its jobs with ``Job(args)``.
    """

    __slots__ = ("args", "context", "failure")

    def __init__(self, args: A, context: JobContext | None = None) -> None:
        self.args = args
        self.context = context or _outside()
        self.failure: BaseException | None = None
        """The exception with which the handler failed the job; None if the handler has not failed the job."""

    def __repr__(self) -> str:
        return f"<job {self.context.id} of a batch>"

    @property
    def id(self) -> str:
        """The job's id."""
        return self.context.id

    @property
    def headers(self) -> Mapping[str, str]:
        """The texts that the producer sent with the arguments."""
        return self.context.headers

    @property
    def cancelled(self) -> bool:
        """True if the handler should skip the job, since the job was cancelled, its lease is lost, the timeout of the
        batch is over, or the worker stops."""
        return self.context.cancelled

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """Show how far this job has come. See JobContext.progress."""
        self.context.progress(done, total, text)

    def emit(self, chunk: str) -> None:
        """Append a text to this job's stream. See JobContext.emit."""
        self.context.emit(chunk)

    def fail(self, why: BaseException | str) -> None:
        """Fail this job, and no other job of the batch. A second call changes nothing.

        ``why`` is an exception, or a text. A text becomes the message of a MemberFailed. The task's retry policy treats
        the exception as if a handler that runs only this job had raised it. RetryLater, Snooze and GiveUp have their
        usual meaning.
        """
        given: object = why
        if isinstance(given, str):
            why = MemberFailed(given)
        elif not isinstance(given, BaseException):
            raise UsageError(f"fail() takes an exception or a text, not {given!r}")
        if self.failure is None:
            assert isinstance(why, BaseException)
            self.failure = why


def _outside() -> JobContext:
    """Return a context for a job that a test makes, and that no worker runs."""
    return JobContext(
        id="test", queue="default", task="test", claim=1, failures=0, losses=0, fence="0-0", worker=""
    )  # fmt: skip


def results_of(jobs: Sequence[Job[Any]], value: Any) -> Sequence[Any]:
    """Return the results of a batch's jobs, in the order of the jobs. ``value`` is what the batch handler returned:
    None, or a list of results.

    Raises UsageError for any other value, and for a list without exactly one result for each job.
    """
    if value is None:
        return [None] * len(jobs)
    if not isinstance(value, list | tuple):
        what = f"a {type(value).__name__}"
    elif len(value) != len(jobs):
        what = f"{counted(len(value), 'result')} for {counted(len(jobs), 'job')}"
    else:
        return value
    raise UsageError(
        f"the batch handler returned {what}: it must return None, or a list with the result of each job, in their order"
    )


def result_of_one(job: Job[Any], found: Any, *, is_async: bool) -> Any:
    """Return the result of the only job in a batch. ``found`` is the value that the handler returned.

    If ``is_async`` is true, ``found`` is a coroutine, and the function returns a coroutine. Raises the exception with
    which the handler failed the job.
    """

    def result(value: Any) -> Any:
        if job.failure is not None:
            raise job.failure
        return results_of([job], value)[0]

    async def awaited() -> Any:
        return result(await found)

    return awaited() if is_async else result(found)


class BatchContext(JobContext):
    """The context of a batch. ``current_job()`` returns it in a batch handler, and ``around`` functions receive it.

    ``jobs`` are the jobs of the batch. The context has a queue, a task and a worker. It has no id and no claim, which
    belong to the single jobs.
    """

    __slots__ = ("jobs",)

    why_no_steps: ClassVar[str] = (
        "a batch handler runs several jobs, and steps belong to one job: use a task without batch"
    )

    def __init__(self, jobs: Iterable[Job[Any]], *, queue: str, task: str, worker: str) -> None:
        super().__init__(
            id="", queue=queue, task=task, claim=0, failures=0, losses=0, fence="", worker=worker
        )  # fmt: skip
        for name in _OF_ONE_JOB:
            delattr(self, name)
        self.why_no_costs = (
            "a batch has no costs, its jobs have: say job.context.cost(…) for each of them"
        )
        self.jobs: Sequence[Job[Any]] = tuple(jobs)

    def showing(self) -> Any:
        """Raise UsageError, since a batch has no progress and no stream of its own."""
        raise UsageError(
            "a batch handler shows the progress of each of its jobs: call progress() and emit() of a job, not of"
            " current_job()"
        )

    def __repr__(self) -> str:
        return f"<batch of {counted(len(self.jobs), 'job')} of {self.task} in {self.queue}>"

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError for an attribute that only the jobs of the batch have, such as ``id`` or ``claim``."""
        raise AttributeError(
            f"a batch has no {name!r}: its jobs have, and they are in `jobs`", name=name, obj=self
        )
