"""Jobs that a restore has in its list of lost jobs come back before the restore comes to them.

A parent that runs again enqueues its lost children under the same ids, for example, and they may end at once. On
PostgreSQL the restore must read nothing about a chunk of such jobs, and not fail.
"""

from __future__ import annotations

from rq_core.connections.client import Client
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs
from sql_audit.upkeep.survey import find_differences, lost_jobs
from tests.audit.restore.jobs import flush, job, run_all
from tests.kit.agreement import drain
from tests.kit.fleet import QUEUE


def test_the_search_for_lost_jobs_finds_none_if_all_listed_jobs_are_back_in_redis(
    client: Client, database: Database
) -> None:
    client.run(client.calls.enqueue.many([job("a"), job("b")]))
    drain(client, database)
    flush(client)
    drain(client, database)
    missing = find_differences(client, database, QUEUE).missing
    assert ["a", "b"] == [lost.job_id for lost, _ in lost_jobs(database, QUEUE, missing)]

    assert 2 == restore_jobs(client, database, QUEUE, by="ada").restored
    assert ["a", "b"] == run_all(client)
    drain(client, database)

    assert [] == list(lost_jobs(database, QUEUE, missing))
