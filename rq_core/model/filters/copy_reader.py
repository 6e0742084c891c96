"""The questions that replays ask an audit log about jobs that died, so that the jobs can be copied.

The package that keeps the log implements :class:`CopyReader`; its entry point is found by
:func:`rq_core.model.plugins.copies_opener`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from rq_core.model.filters.job_filter import Filter

After = tuple[int, str, str, str]
"""The place after which a page begins: when a claim ended (Unix ms), its job, its fence, and its queue."""


class DiedJobs(NamedTuple):
    """A page of jobs that died."""

    ids: tuple[str, ...]
    last: frozenset[str]
    """The jobs of ``ids`` whose last claim is on this page. The last claim of another job is on another page, or does
    not match."""
    next: After | None
    """The place after which the next page begins; None: there are no more jobs."""


class CopyReader(Protocol):
    """Reads one audit log. Threads may share it. Each method raises RqCoreError if the database does not answer."""

    def died(self, which: Filter, after: After | None, limit: int, /) -> DiedJobs:
        """Return a page of the jobs that died while they were claimed and have not become alive again, the last death
        first. ``which`` may have the terms queue, task, error, worker, scope and between. A page may be empty although
        there are further pages."""
        ...

    def known(self, queue: str, ids: Sequence[str], /) -> set[str]:
        """Return which of these ids the log knows as jobs of the queue."""
        ...

    def reasons(self, queue: str, ids: Sequence[str], /) -> Mapping[str, str]:
        """Return the reasons with which these jobs were enqueued, by id. A job without a reason is left out."""
        ...

    def specs(self, queue: str, ids: Sequence[str], /) -> Mapping[str, str]:
        """Return the JSON with which these jobs were enqueued, by id. A job whose JSON the log did not keep is left
        out."""
        ...

    def queues_of(self, job_id: str, /) -> list[str]:
        """Return the queues in which the log knows a job with this id."""
        ...

    def has_come_to(self, queue: str, entry: tuple[int, int], /) -> bool:
        """Return whether the log has an entry of the queue's outbox (epoch and number), and all entries before it."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class OpenCopies(Protocol):
    """A function that returns the CopyReader of the audit log at a URL, without connecting.

    Raises RqCoreError for a bad URL and for a driver that is not installed.
    """

    def __call__(self, audit_url: str, /) -> CopyReader: ...
