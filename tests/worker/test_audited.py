"""Workers with a mirror. All events reach SQL, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import select

from rq_core.app.app import App
from rq_core.connections.client import Client
from sql_audit.queries import reports
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import job, job_event
from tests.kit import crew
from tests.kit.command import command
from tests.kit.crew import worker_process
from tests.kit.wait import wait_until
from tests.worker.conftest import log_of, mirrored


def _left(client: Client) -> int:
    counts = client.run(client.calls.reads.counts("crew"))
    return sum(counts.ready.values()) + counts.running + counts.scheduled


@pytest.mark.slow
def test_a_worker_with_audit_leaves_every_event_in_sql(
    app: App, client: Client, witness: crew.Witness, audit_url: str
) -> None:
    app.enqueue_many(crew.function.job(n=n) for n in range(200))
    bad = crew.failing.enqueue("that is wrong")
    with worker_process(app.redis_url, witness, "--audit", audit_url) as process:
        wait_until(lambda: bad.state() == "dead" and not _left(client), "all is done", timeout=30)
        process.terminate()
        assert process.wait(60) == 0

    database = Database(audit_url)
    with database.readers.connect() as connection:
        types = Counter(connection.execute(select(job_event.c.type)).scalars())
    report = reports.report(database.readers, "crew")
    database.close()
    assert (types["enqueued"], types["succeeded"], types["died"]) == (201, 200, 1)
    assert types["claimed"] == 200 + 3
    assert (report.jobs, report.succeeded, report.dead, report.retries) == (201, 200, 1, 2)
    # What is committed in SQL is trimmed from Redis; its last entry stays as the mirror's anchor.
    assert len(client.run(client.calls.audit.read_outbox("crew", "-", 10))) == 1
    assert client.run(client.calls.reads.counts("crew")).backlog == 0
    app.audit_url = audit_url
    try:
        assert [e.type for e in bad.history()][-2:] == ["claimed", "died"]
    finally:
        app.audit_url = None


@pytest.mark.slow
def test_the_mirror_copies_events_that_were_appended_while_the_mirror_was_stopped(
    app: App, client: Client, witness: crew.Witness, sqlite_url: str
) -> None:
    with worker_process(app.redis_url, witness, "--audit", sqlite_url, "--burst") as process:
        assert process.wait(60) == 0
    app.enqueue_many(crew.function.job(n=n) for n in range(50))
    with worker_process(app.redis_url, witness, "--burst") as process:
        assert process.wait(60) == 0
    waiting = log_of(client)
    assert sum(len(e.jobs) for e in waiting if e.event == "succeeded") == 50

    with worker_process(app.redis_url, witness, "--audit", sqlite_url) as process:
        wait_until(mirrored(client), "all is mirrored", timeout=30)
        process.terminate()
        assert process.wait(60) == 0

    database = Database(sqlite_url)
    assert reports.report(database.readers, "crew").succeeded == 50
    database.close()


@pytest.mark.slow
def test_a_worker_with_audit_starts_on_an_emptied_redis_but_not_on_another_redis(
    app: App, client: Client, witness: crew.Witness, sqlite_url: str
) -> None:
    """Checks that the mirror continues after a loss in its own Redis, and copies nothing from another Redis."""
    crew.function.enqueue(n=1)
    mirror = ["audit", "run", "--once", "--redis", app.redis_url, "--audit", sqlite_url]
    assert command(*mirror).exit_code == 0
    client.run(client.calls.delivery.ask([["FLUSHALL"]]))
    with worker_process(app.redis_url, witness, "--audit", sqlite_url, "--burst") as process:
        assert process.wait(60) == 0
    client.run(client.calls.delivery.ask([["FLUSHALL"]]))
    crew.function.enqueue(n=2)
    with worker_process(app.redis_url, witness, "--audit", sqlite_url, "--burst") as process:
        assert process.wait(60) == 1
        refused = process.said()

    assert witness.lines() == []
    assert "rq-core audit adopt --redis" in refused
    database = Database(sqlite_url)
    with database.readers.connect() as connection:
        states = connection.execute(select(job.c.state)).scalars().all()
    database.close()
    assert states == ["lost"]
    assert _left(client) == 1


@pytest.mark.slow
def test_ended_jobs_leave_few_keys_in_redis(
    app: App, client: Client, witness: crew.Witness
) -> None:
    """Checks that Redis keeps no data of ended jobs. After 10,200 jobs in three queues it has fewer than 36 keys."""
    for queue in ("one", "two", "three"):
        send = crew.coroutine.with_options(queue=queue)
        app.enqueue_many(send.job(n=n) for n in range(3_400))
    options = ("--concurrency", "100", "--burst")
    queues = ("--queues", "one,two,three", "--force")
    with worker_process(app.redis_url, witness, *options, *queues) as process:
        assert process.wait(60) == 0

    (keys,) = client.run(client.calls.delivery.ask([["KEYS", "*"]]))
    assert len(witness.lines()) == 10_200
    assert len(keys) < 36
    for queue in ("one", "two", "three"):
        snapshot = client.run(client.calls.reads.snapshot(queue))
        assert snapshot["state"] == snapshot["jobs"] == snapshot["leases"] == {}
