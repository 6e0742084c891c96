"""Reports how jobs ended, and how long they waited and ran, per queue and task.

engine = Database("audit.db").readers
print(report(engine, queue="mail").tasks)
"""

# ruff: noqa: S608 - statements are joined from constants of this module; values are bound

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Engine, text

from sql_audit.queries.history import OF_QUEUE, Watermark, marks_of

SLOWEST: Final = 5
"""Number of the slowest jobs that a report names by default."""
RATED_MS_MIN: Final = 1_000
"""Minimum length in ms of the time for which a report computes a throughput: one job that ends within a millisecond
does not mean 1,000 jobs per second."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The numbers of one task in one queue. Times are in ms; None means that no claim has such a time."""

    queue: str
    task: str | None
    jobs: int
    succeeded: int
    claims: int
    retries: int
    lease_expired: int
    """Number of claims whose lease expired."""
    rolled_back: int
    """Number of claims that were given back without counting as an attempt."""
    dead: int
    """Number of jobs that are dead, or were dead when an operator or the end of their retention removed them. In a
    report of a given time: number of claims that ended with their job's death."""
    cancelled: int
    discarded: int
    """Number of jobs that were not accepted, because a cap was full. ``jobs`` includes them only in a report of a given
    time."""
    waited_p50_ms: int | None
    waited_p95_ms: int | None
    ran_p50_ms: int | None
    ran_p95_ms: int | None
    throughput: float | None
    """Succeeded jobs per second, from the first enqueue to the last success; in a report of a given time, from the
    first to the last claim that ended in that time. None if no job succeeded, or if this span is shorter than
    RATED_MS_MIN."""


@dataclass(frozen=True, slots=True)
class SlowJob:
    """One of the successful claims that ran longest."""

    queue: str
    task: str | None
    job_id: str
    worker: str | None
    ran_ms: int
    waited_ms: int | None


@dataclass(frozen=True, slots=True)
class Report:
    """The numbers of each task of one queue or of all queues, the slowest jobs, and the watermarks."""

    tasks: list[TaskReport]
    slowest: list[SlowJob]
    watermarks: list[Watermark]
    events: int = field(default=0)
    """Number of events in the logs of the queues of the report; 0 in a report of a given time."""

    @property
    def jobs(self) -> int:
        return sum(task.jobs for task in self.tasks)

    @property
    def claims(self) -> int:
        return sum(task.claims for task in self.tasks)

    @property
    def succeeded(self) -> int:
        return sum(task.succeeded for task in self.tasks)

    @property
    def dead(self) -> int:
        return sum(task.dead for task in self.tasks)

    @property
    def lease_expired(self) -> int:
        return sum(task.lease_expired for task in self.tasks)

    @property
    def retries(self) -> int:
        return sum(task.retries for task in self.tasks)


_ByTask = dict[tuple[str, str | None], tuple[Any, ...]]


_JOBS = text(
    "SELECT queue, task, SUM(CASE WHEN state = 'discarded' THEN 0 ELSE 1 END) AS jobs, "
    "SUM(CASE WHEN state = 'discarded' THEN 1 ELSE 0 END) AS discarded, "
    "SUM(CASE WHEN state = 'succeeded' THEN 1 ELSE 0 END) AS succeeded, "
    "SUM(CASE WHEN state IN ('dead', 'pruned') THEN 1 ELSE 0 END) AS dead, "
    "SUM(CASE WHEN state = 'cancelled' THEN 1 ELSE 0 END) AS cancelled, "
    "MIN(enqueued_at_ms) AS first_ms, "
    "MAX(CASE WHEN state = 'succeeded' THEN finished_at_ms END) AS last_ms "
    f"FROM job WHERE {OF_QUEUE} GROUP BY queue, task ORDER BY queue, task"
)

_CLAIMS = text(
    "SELECT queue, task, COUNT(*) AS claims, "
    "SUM(CASE WHEN outcome = 'retried' THEN 1 ELSE 0 END) AS retries, "
    "SUM(CASE WHEN outcome = 'lease_expired' THEN 1 ELSE 0 END) AS lease_expired, "
    "SUM(CASE WHEN outcome = 'rolled_back' THEN 1 ELSE 0 END) AS rolled_back "
    f"FROM job_attempt WHERE {OF_QUEUE} GROUP BY queue, task"
)


def values_of(column: str, claims: str) -> Any:
    """Return a statement that counts how many claims have each value of a column, per queue and task, smallest value
    first.

    ``claims`` is the text after FROM: a table or a query, with a condition. There are far fewer values than claims.
    """
    return text(
        f"SELECT queue, task, {column} AS ms, COUNT(*) AS claims FROM {claims} AND {column} IS NOT NULL "
        f"GROUP BY queue, task, {column} ORDER BY queue, task, {column}"
    )


def percentiles(rows: Iterable[Iterable[Any]]) -> _ByTask:
    """Return the 50th and the 95th percentile (nearest rank) of a value, by queue and task. ``rows`` are the result of
    a statement of :func:`values_of`.
    """
    found: dict[tuple[str, str | None], list[tuple[int, int]]] = {}
    for queue, task, ms, claims in rows:
        found.setdefault((queue, task), []).append((ms, claims))
    return {
        key: tuple(_at_rank(values, percent) for percent in (50, 95))
        for key, values in found.items()
    }


def _at_rank(values: Sequence[tuple[int, int]], percent: int) -> int:
    upto = list(itertools.accumulate(claims for _, claims in values))
    rank = -(-upto[-1] * percent // 100)
    return values[bisect.bisect_left(upto, rank)][0]


_WAITED = values_of("waited_ms", f"job_attempt WHERE {OF_QUEUE}")
_RAN = values_of("ran_ms", f"job_attempt WHERE {OF_QUEUE}")

_SLOWEST = text(
    "SELECT queue, task, job_id, worker, ran_ms, waited_ms FROM job_attempt "
    f"WHERE outcome = 'succeeded' AND ran_ms IS NOT NULL AND {OF_QUEUE} "
    "ORDER BY ran_ms DESC, job_id LIMIT :limit"
)


def report(engine: Engine, queue: str | None = None, slowest: int = SLOWEST) -> Report:
    """Return the report of a queue, or of all queues, with at most ``slowest`` slow jobs."""
    of_queue = {"queue": queue}
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            # All statements read one snapshot; on SQLite, a read transaction always does.
            connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        marks = marks_of(connection, queue)
        rows = connection.execute(_CLAIMS, of_queue).mappings()
        claims = {(row["queue"], row["task"]): row for row in rows}
        waited = percentiles(connection.execute(_WAITED, of_queue))
        ran = percentiles(connection.execute(_RAN, of_queue))
        tasks = [
            task_report(
                row["queue"], {**row, **claims.get((row["queue"], row["task"]), {})}, waited, ran
            )
            for row in connection.execute(_JOBS, of_queue).mappings()
        ]
        slow = [
            SlowJob(*row) for row in connection.execute(_SLOWEST, {**of_queue, "limit": slowest})
        ]
    return Report(tasks, slow, marks, sum(mark.events for mark in marks))


_COUNTS: Final = (
    "jobs", "succeeded", "claims", "retries", "lease_expired", "rolled_back", "dead", "cancelled", "discarded",
)  # fmt: skip
"""The counts of a TaskReport, in the order of its fields."""


def task_report(queue: str, row: Mapping[Any, Any], waited: _ByTask, ran: _ByTask) -> TaskReport:
    """Return the report of one task. ``row`` has the counts by name; a missing count is 0."""
    key = queue, row["task"]
    times = (*waited.get(key, (None, None)), *ran.get(key, (None, None)))
    counts = (int(row.get(name, 0)) for name in _COUNTS)
    values: Sequence[Any] = (*key, *counts, *times, _throughput_of(row))
    return TaskReport(*values)


def _throughput_of(row: Mapping[Any, Any]) -> float | None:
    """Return the successes per second between ``first_ms`` and ``last_ms`` of a row.

    Return None if there is no success, if a time is missing, or if the times are less than RATED_MS_MIN apart.
    """
    if not row["succeeded"] or row["first_ms"] is None or row["last_ms"] is None:
        return None
    stretch_ms = int(row["last_ms"] - row["first_ms"])
    return None if stretch_ms < RATED_MS_MIN else float(row["succeeded"] * 1000 / stretch_ms)
