"""Statements about the events of some jobs find them by the jobs' ids.

SQLite would otherwise read all events of the queue, because these are in the order in which the statement wants them. A
restore or a replay of many jobs sends such a statement again and again, so its time would grow with the square of the
log.
"""

from __future__ import annotations

import pytest
from sqlalchemy import TextClause, text

from sql_audit.mirror.projection import rebuild
from sql_audit.proof import child_logs
from sql_audit.proof.compare import box_histories, job_histories, trusted_rows
from sql_audit.queries import copies
from sql_audit.store.connection.database import Database
from sql_audit.upkeep import lost_results

STATEMENTS = {
    "a restore's jobs": rebuild._EVENTS_OF_JOBS,
    "a restore's results": lost_results._EVENTS,
    "the doctor's ends of jobs": job_histories._OF_JOBS,
    "the doctor's boxes": box_histories._OF_JOBS,
    "the entries of some jobs": trusted_rows._ENTRIES,
    "copies of jobs": copies._ENQUEUED,
    "children": child_logs._CHILDREN,
}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_sqlite_finds_the_events_of_some_jobs_by_the_ids_of_the_jobs(
    database: Database, statement: TextClause
) -> None:
    asked = {"queue": "mail", "ids": ["a", "b"], "types": ["succeeded"], "epoch": 1, "seq": 2}
    names = statement._bindparams.keys()
    explain = text(f"EXPLAIN QUERY PLAN {statement.text}").bindparams(
        *statement._bindparams.values()
    )
    with database.readers.connect() as connection:
        plan = connection.execute(explain, {name: asked[name] for name in names}).all()

    assert any("INDEX job_event_job (job_id=?" in row[3] for row in plan), plan
