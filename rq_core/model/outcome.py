"""The outcome of a job, for clients that wait for the job.

    match handle.wait(timeout=30):
        case Succeeded():
            ...
        case Failed(error=error, reason=reason):
            ...
        case other:
            ...

An outcome is a plain object. If the job did not succeed, reading ``value`` of the outcome raises an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from rq_core import errors
from rq_core.model.job import JobError

T_co = TypeVar("T_co", covariant=True)
"""The type that the task's function returns."""

NOT_KEPT: Final = "not_kept"
"""The reason why a result is missing if it was never kept."""
TOO_LARGE: Final = "too_large"
NOT_JSON: Final = "not_json"
UNFINISHED: Final = "unfinished"
EXPIRED: Final = "expired"
LOST: Final = "lost"
_WHY: Final = {
    NOT_KEPT: "the call that enqueued it kept no result: the task has no keep_result, or no worker had registered the"
    " task yet. To keep results for an hour, write @app.task(keep_result=True), or pass keep_result=True to the call",
    TOO_LARGE: "it is longer than 64 KiB as JSON: store it elsewhere, and return a reference",
    NOT_JSON: "it does not fit the return annotation of its function, or cannot be JSON",
    UNFINISHED: "it was not yet converted to JSON when the job timed out, or its process ended: return plain data",
    EXPIRED: "the time keep_result is over: raise keep_result to keep results longer",
    LOST: 'Redis no longer has it, and the log does not keep it: audit_result="full" lets the log keep values',
    "evicted": "it was removed to make room for other results: raise kept_max_bytes of the queue, or keep results for"
    " less time",
    "full": "the queue had no room for it: raise kept_max_bytes of the queue, or keep results for less time",
}
REASONS: Final = frozenset(_WHY)
"""The reasons why a result, or the value of a step, is missing. It takes the place of the digest of the value."""


def reason_of(missing: str) -> str:
    """Return a phrase for the reason why a result is missing. Some reasons have an explanation."""
    return f"{missing}: {_WHY[missing]}" if missing in _WHY else missing


def keeps_none(job_id: str) -> errors.ResultUnavailable:
    """Return the error for a client that waits for a result that is not kept. The client gets this error whether or not
    the job has ended."""
    said = f"the result of job {job_id} cannot be waited for: {_WHY[NOT_KEPT]}"
    return errors.ResultUnavailable(said, id=job_id, reason=NOT_KEPT, why=_WHY[NOT_KEPT])


class Kept(NamedTuple):
    """A job's result as Redis stores it."""

    json: str
    task: str | None
    """The task whose annotation names the result's type; None: not known."""


@dataclass(frozen=True, slots=True)
class Outcome(ABC, Generic[T_co]):
    """The outcome of a job. Each outcome is a class: Succeeded, Failed, Cancelled, Expired, Replaced, Gone."""

    id: str
    """Id of the job."""

    @property
    @abstractmethod
    def value(self) -> T_co:
        """The job's result. If the result is unknown, raises the NoResult error for this kind of end."""


@dataclass(frozen=True, slots=True)
class Succeeded(Outcome[T_co]):
    """The job succeeded: its handler returned. ``missing`` is one word for the reason why the result is unknown; None:
    the result is known."""

    kept: Any = None
    """The result, if it is known. At first it is a Kept object, as read from Redis or the log; later it is the Python
    value."""
    missing: str | None = NOT_KEPT

    @property
    def value(self) -> T_co:
        """The job's result. Raises ResultUnavailable if the result is unknown."""
        if self.missing is not None:
            why = _WHY.get(self.missing, self.missing)
            raise errors.ResultUnavailable(id=self.id, reason=self.missing, why=why)
        return self.kept  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Failed(Outcome[T_co]):
    """The job is dead, or was dead and has been removed. An operator may requeue a dead job; it then ends a second
    time."""

    reason: str = ""
    """One word for the reason why the job died: attempts_spent, gave_up, poison, …"""
    error: JobError | None = None
    """The error that the last handler raised; None if the job died for another reason."""

    @property
    def value(self) -> T_co:
        """Raise JobFailed: a dead job has no result."""
        said = f"{self.reason} ({self.error})" if self.error is not None else self.reason
        raise errors.JobFailed(id=self.id, reason=self.reason, error=self.error, said=said)


@dataclass(frozen=True, slots=True)
class Cancelled(Outcome[T_co]):
    """The job was cancelled."""

    @property
    def value(self) -> T_co:
        """Raise JobWasCancelled: a cancelled job has no result."""
        raise errors.JobWasCancelled(id=self.id)


@dataclass(frozen=True, slots=True)
class Expired(Outcome[T_co]):
    """No worker began the job before its deadline."""

    @property
    def value(self) -> T_co:
        """Raise JobExpired: an expired job has no result."""
        raise errors.JobExpired(id=self.id)


@dataclass(frozen=True, slots=True)
class Replaced(Outcome[T_co]):
    """Another job with the same unique name replaced the job."""

    by: str = ""
    """Id of the job that replaced this job; empty: unknown."""

    @property
    def value(self) -> T_co:
        """Raise JobReplaced: a replaced job has no result."""
        raise errors.JobReplaced(id=self.id, by=self.by)


@dataclass(frozen=True, slots=True)
class Gone(Outcome[T_co]):
    """Redis does not have the job, and neither Redis nor the audit database has a record of how the job ended."""

    @property
    def value(self) -> T_co:
        """Raise JobGone: neither Redis nor the log has the result."""
        raise errors.JobGone(id=self.id)
