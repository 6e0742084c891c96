"""Functions that add headers to jobs before the jobs leave the program: ``app.outgoing(function)``."""

from __future__ import annotations

from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Literal

from rq_core.errors import InvalidOption
from rq_core.model.headers import fits, headers_text, read_headers
from rq_core.model.job import NewJob

Way = Literal["enqueue", "enqueue_many", "inbox", "inbox_many", "copy", "children"]
"""The ways in which jobs leave the program: an enqueue of one or of many jobs, an insert of one or of many rows into an
inbox, an enqueue of copies, or of a job's children."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A call that sends jobs. Functions of ``app.outgoing`` receive it before the jobs are sent.

    ``way`` is ``enqueue``, ``enqueue_many``, ``inbox``, ``inbox_many``, ``copy`` or ``children``. If a call sends many
    jobs, each function is called once, with an Outgoing for the first job. The headers that the functions return are
    added to each job of the call.
    """

    way: Way
    queue: str
    task: str
    job_id: str
    is_delayed: bool
    """True if the job was enqueued with a ``delay`` or with ``at``, and so is not ready at once."""
    headers: Mapping[str, str]
    """The headers that the caller has given to the job."""


Hook = Callable[[Outgoing], Mapping[str, str] | None]
"""A function that returns headers to add, or None."""


def outgoing_job(hooks: Sequence[Hook], job: NewJob, way: Way) -> NewJob:
    """Return a job with the headers that ``hooks`` add to it. Headers that the caller has given do not change.

    If all headers together are too long, the longest added headers are left out. Raises InvalidOption for an invalid
    header.
    """
    return _with_headers(job, _added(hooks, job, way))


def outgoing_jobs(hooks: Sequence[Hook], jobs: Iterable[NewJob], way: Way) -> Iterator[NewJob]:
    """Yield the jobs of one call with the headers that ``hooks`` add to them.

    In a copy of a job, an added header replaces the original's header of the same name. Raises InvalidOption for an
    invalid header.
    """
    added: Mapping[str, str] | None = None
    for job in jobs:
        if added is None:
            added = _added_for(hooks, job, way)
        yield _with_headers(job, added, replace=way == "copy")


async def outgoing_jobs_async(
    hooks: Sequence[Hook], jobs: AsyncIterable[NewJob], way: Way
) -> AsyncIterator[NewJob]:
    """Yield the jobs of one call with the headers that ``hooks`` add to them, in an event loop. See outgoing_jobs."""
    added: Mapping[str, str] | None = None
    async for job in jobs:
        if added is None:
            added = _added_for(hooks, job, way)
        yield _with_headers(job, added)


def _added_for(hooks: Sequence[Hook], job: object, way: Way) -> Mapping[str, str]:
    """Return the headers that ``hooks`` add to ``job``. If ``job`` is no job, return no headers, since a later check
    refuses it."""
    return _added(hooks, job, way) if isinstance(job, NewJob) else {}


def _added(hooks: Sequence[Hook], job: NewJob, way: Way) -> Mapping[str, str]:
    given = read_headers(job.headers_json) if job.headers_json else {}
    call = Outgoing(
        way, job.queue, job.profile.task, job.id, bool(job.delay_ms or job.due_ms), given
    )
    found: dict[str, str] = {}
    for function in hooks:
        added: object = function(call)
        if added is None:
            continue
        if not isinstance(added, Mapping):
            must = f"must return a mapping of headers, or None, not a {type(added).__name__}"
            raise InvalidOption.of("outgoing", function, must)
        found |= added
    return found


def _with_headers(job: object, added: Mapping[str, str], *, replace: bool = False) -> NewJob:
    if not isinstance(job, NewJob) or not added:
        return job  # type: ignore[return-value]  # the call that it was passed to refuses it
    given = read_headers(job.headers_json) if job.headers_json else {}
    if not replace:
        added = {name: value for name, value in added.items() if name not in given}
    text = headers_text({**given, **added})
    if not fits(text):
        # What is too long often comes from outside, as the baggage of a web request: no reason to refuse the job.
        text = _fitting(given, added)
    return job._replace(headers_json=text)


def _fitting(given: Mapping[str, str], added: Mapping[str, str]) -> str:
    """Return the caller's headers with the added headers for which there is room, as JSON. Short headers are added
    first."""
    both = dict(given)
    for name, value in sorted(added.items(), key=lambda each: len("".join(each))):
        longer = {**both, name: value}
        if fits(headers_text(longer)):
            both = longer
    return headers_text(both)
