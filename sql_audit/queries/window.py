"""Reports the claims that ended in a given time, and the jobs that were cancelled or discarded in this time.

Indexes find these claims and jobs, so the cost does not depend on the length of the log
(:mod:`sql_audit.store.schema.duration_classes`).
"""

# ruff: noqa: S608 - statements are joined from constants; values are bound

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, Engine, text

from sql_audit.queries.history import marks_of
from sql_audit.queries.reports import (
    SLOWEST,
    Report,
    SlowJob,
    TaskReport,
    percentiles,
    task_report,
    values_of,
)
from sql_audit.store.schema.duration_classes import RAN, SPANS_MS

END_OF_TIME_MS: Final = 2**62
"""A time later than any event (Unix ms), as the default end of a report."""

_THEN: Final = ">= :since AND {0} < :until"
_COLUMNS: Final = "queue, task, job_id, claim, worker, outcome, waited_ms, ran_ms, ended_at_ms"
_ENDED: Final = " UNION ALL ".join(
    f"SELECT {_COLUMNS} FROM job_attempt WHERE queue = :queue AND {RAN} = {number} "
    f"AND ended_at_ms {_THEN.format('ended_at_ms')}"
    for number in range(len(SPANS_MS) + 1)
)
"""Selects the claims of a queue that ended in the given time, one part for each class of durations."""
_WITHOUT: Final = (
    "SELECT queue, task, job_id FROM job WHERE queue = :queue AND state = '{0}' "
    f"AND finished_at_ms {_THEN.format('finished_at_ms')}"
)
"""A query for the jobs that ended in the given time in a state that jobs may reach without a claim. Jobs whose claim
was cancelled are among them."""

_OF_POISON: Final = (
    "EXISTS (SELECT 1 FROM job j WHERE j.job_id = ended.job_id AND j.queue = :queue AND j.claims = ended.claim "
    "AND j.state IN ('dead', 'pruned') AND j.reason = 'poison')"
)
"""An SQL condition: the job died because this claim's lease expired, as the last of too many. It is evaluated only for
claims that ended by expiry, which are few."""
_OUTCOMES: Final = {
    "succeeded": "succeeded", "retries": "retried", "lease_expired": "lease_expired", "rolled_back": "rolled_back",
    "cancelled": "as_job_cancelled", "discarded": "as_job_discarded",
}  # fmt: skip
"""The outcome of the claims or jobs that each count counts, by the count's name."""
_TASKS: Final = text(
    "SELECT task, COUNT(DISTINCT job_id) AS jobs, COUNT(ended_at_ms) AS claims, "
    "MIN(ended_at_ms) AS first_ms, MAX(ended_at_ms) AS last_ms, SUM(died) AS dead, "
    + ", ".join(
        f"SUM(CASE WHEN outcome = '{outcome}' THEN 1 ELSE 0 END) AS {name}"
        for name, outcome in _OUTCOMES.items()
    )
    + " FROM (SELECT task, job_id, outcome, ended_at_ms, CASE WHEN outcome = 'died' OR outcome = 'lease_expired' "
    f"AND {_OF_POISON} THEN 1 ELSE 0 END AS died FROM ({_ENDED}) AS ended"
    + "".join(
        f" UNION ALL SELECT task, job_id, 'as_job_{state}', NULL, 0 FROM ({_WITHOUT.format(state)}) AS {state}"
        for state in ("cancelled", "discarded")
    )
    + ") AS done GROUP BY task ORDER BY task"
)


_WAITED: Final = values_of("waited_ms", f"({_ENDED}) AS ended WHERE TRUE")
_RAN: Final = values_of("ran_ms", f"({_ENDED}) AS ended WHERE TRUE")
_SLOWEST: Final = text(
    f"SELECT queue, task, job_id, worker, ran_ms, waited_ms FROM ({_ENDED}) AS ended "
    "WHERE outcome = 'succeeded' AND ran_ms IS NOT NULL ORDER BY ran_ms DESC, job_id LIMIT :limit"
)


def report_within(
    engine: Engine,
    queue: str | None = None,
    slowest: int = SLOWEST,
    *,
    since_ms: int = 0,
    until_ms: int = END_OF_TIME_MS,
) -> Report:
    """Return the report of the claims that ended from ``since_ms`` on and before ``until_ms`` (Unix ms).

    ``queue`` None means all queues. ``jobs`` counts the jobs that were cancelled or discarded in this time, and the
    jobs with a claim that ended in this time. ``events`` is 0.
    """
    tasks: list[TaskReport] = []
    slow: list[SlowJob] = []
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            # All statements read one snapshot; on SQLite, a read transaction always does.
            connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        marks = marks_of(connection, queue)
        for mark in marks:
            of = {"queue": mark.queue, "since": since_ms, "until": until_ms}
            tasks += _tasks(connection, of)
            found = connection.execute(_SLOWEST, {**of, "limit": slowest})
            slow += [SlowJob(*row) for row in found]
    slow.sort(key=lambda each: (-each.ran_ms, each.job_id))
    return Report(tasks, slow[:slowest], marks)


def _tasks(connection: Connection, of: dict[str, Any]) -> list[TaskReport]:
    waited = percentiles(connection.execute(_WAITED, of))
    ran = percentiles(connection.execute(_RAN, of))
    return [
        task_report(of["queue"], row, waited, ran)
        for row in connection.execute(_TASKS, of).mappings()
    ]
