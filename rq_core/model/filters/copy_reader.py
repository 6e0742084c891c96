"""The interface through which a replay reads an audit log. A replay enqueues copies of jobs that died.

The package that keeps the log implements :class:`CopyReader`. :func:`rq_core.model.plugins.copies_opener` finds its
entry point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from rq_core.model.filters.job_filter import Filter

After = tuple[int, str, str, str]
"""A position in the pages of died jobs: the page begins after this claim. It has the time at which the claim ended
(Unix ms), and the claim's job, fence and queue."""


class DiedJobs(NamedTuple):
    """A page of the jobs that died."""

    ids: tuple[str, ...]
    last: frozenset[str]
    """The jobs among ``ids`` whose last claim is on this page. The last claim of any other job is on another page, or
    does not match the filter."""
    next: After | None
    """The position to pass for the next page; None: there are no more jobs."""


class CopyReader(Protocol):
    """Reads one audit log. Threads may share it. Each method raises RqCoreError if the database does not answer."""

    def died(self, which: Filter, after: After | None, limit: int, /) -> DiedJobs:
        """Return a page of the jobs that died at the end of a claim, newest death first. Jobs that became alive again
        after their death are left out.

        ``which`` may have the terms queue, task, error, worker, scope and between. The page begins after the position
        ``after``; None: with the newest death. A page may be empty although further pages follow.
        """
        ...

    def known(self, queue: str, ids: Sequence[str], /) -> set[str]:
        """Return those of ``ids`` that belong to jobs of the queue, according to the log."""
        ...

    def reasons(self, queue: str, ids: Sequence[str], /) -> Mapping[str, str]:
        """Return, by id, the reason with which each of these jobs was enqueued. Jobs without a reason are left out."""
        ...

    def specs(self, queue: str, ids: Sequence[str], /) -> Mapping[str, str]:
        """Return, by id, the JSON with which each of these jobs was enqueued. Jobs whose JSON is not in the log are
        left out."""
        ...

    def queues_of(self, job_id: str, /) -> list[str]:
        """Return the queues in which the log has a job with this id."""
        ...

    def has_come_to(self, queue: str, entry: tuple[int, int], /) -> bool:
        """Return whether the log has all entries of the queue's outbox up to ``entry`` (epoch and number)."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class OpenCopies(Protocol):
    """A function that returns a CopyReader for the audit log at a URL. It does not connect yet.

    Raises RqCoreError for a bad URL or a driver that is not installed.
    """

    def __call__(self, audit_url: str, /) -> CopyReader: ...
