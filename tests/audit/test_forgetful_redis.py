"""Redis forgets a queue's log, or all its data, while a mirror runs: the mirror attaches again and continues."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from sqlalchemy import select

from rq_core.connections.client import Client
from rq_core.errors import AuditOff
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, profile
from rq_core.protocol.calls import claims
from sql_audit.errors import QueuesElsewhere
from sql_audit.mirror import service, source_registry
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.queries import history
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import job
from tests.kit.command import audit

TASK = profile("task")
ids = JobIds()


def new_jobs(count: int) -> list[NewJob]:
    return [NewJob(ids(), "q", TASK, "{}") for _ in range(count)]


def mirror(client: Client, database: Database) -> None:
    service.run_mirror(Outbox(client), database, stop=threading.Event(), queues=["q"], once=True)


def states(database: Database) -> dict[str, str]:
    with database.readers.connect() as connection:
        rows = connection.execute(select(job.c.job_id, job.c.state))
        return {row[0]: row[1] for row in rows}


def test_the_mirror_continues_after_redis_was_flushed(valkey_url: str, audit_url: str) -> None:
    database = Database(audit_url)
    with Client(valkey_url) as client:
        client.run(client.calls.enqueue.many(new_jobs(3)))
        mirror(client, database)
        client.run(client.calls.delivery.ask([["FLUSHALL"]]))
        after = client.run(client.calls.enqueue.many(new_jobs(2))).ids
        # Used before a mirror came, it has a queue without a stamp: a person says that it is the same server.
        source_registry.adopt(Outbox(client), database)
        mirror(client, database)

        assert client.run(client.calls.reads.counts("q")).audit
        assert client.run(client.calls.reads.counts("q")).backlog == 0
    found = states(database)
    database.close()
    assert {found[i] for i in after} == {"ready"}


def test_a_deleted_outbox_is_followed_by_a_baseline_of_the_live_jobs(
    valkey_url: str, audit_url: str
) -> None:
    database = Database(audit_url)
    with Client(valkey_url) as client:
        first = client.run(client.calls.enqueue.many(new_jobs(3))).ids
        mirror(client, database)
        calls = client.calls
        claimed = client.run(claims.claim("q", calls.delivery.name, 1))
        client.run(calls.delivery.ask([["DEL", "rqc:{q}:outbox"]]))
        second = client.run(client.calls.enqueue.many(new_jobs(1))).ids
        mirror(client, database)

        assert client.run(client.calls.reads.counts("q")).backlog == 0
    found = states(database)
    events = history.history(database.readers, claimed.jobs[0].id)
    database.close()
    # The claim was lost with the outbox before it was mirrored; the baseline tells of it.
    assert claimed.jobs[0].id == first[0]
    assert found == {first[0]: "running", first[1]: "ready", first[2]: "ready", second[0]: "ready"}
    assert [e.type for e in events] == ["enqueued", "baseline"]


def test_a_queue_whose_outbox_was_deleted_before_the_first_mirror_gets_a_baseline(
    valkey_url: str, sqlite_url: str
) -> None:
    """Checks jobs that are older than the first entry of the outbox."""
    database = Database(sqlite_url)
    with Client(valkey_url) as client:
        old = client.run(client.calls.enqueue.many(new_jobs(2))).ids
        client.run(client.calls.delivery.ask([["DEL", "rqc:{q}:outbox"]]))
        client.run(client.calls.enqueue.many(new_jobs(1)))
        mirror(client, database)
    found = states(database)
    database.close()
    assert {found[i] for i in old} == {"ready"}
    assert len(found) == 3


def test_a_queue_can_be_detached_from_a_lost_audit_database(
    valkey_url: str, tmp_path: Path
) -> None:
    lost, fresh = (
        Database(f"sqlite:///{tmp_path / 'a.db'}"),
        Database(f"sqlite:///{tmp_path / 'b.db'}"),
    )
    with Client(valkey_url) as client:
        old = client.run(client.calls.enqueue.many(new_jobs(2))).ids
        mirror(client, lost)
        with pytest.raises(QueuesElsewhere, match="audit off QUEUE --force"):
            mirror(client, fresh)

        done = audit("off", "q", "--force", "--redis", valkey_url)
        assert (done.exit_code, done.output) == (0, "queue q: audit off\n")

        mirror(client, fresh)
    assert set(states(fresh)) == set(old)
    lost.close()
    fresh.close()


def test_the_mirror_continues_if_redis_was_flushed_between_its_commit_and_its_trim(
    valkey_url: str, audit_url: str
) -> None:
    """Checks that the mirror drops the trim that it has not sent. After the flush Redis would refuse this trim
    forever."""
    database = Database(audit_url)
    with Client(valkey_url) as client:
        after: list[str] = []

        def flush(step: str) -> None:
            if step == "committed" and not after:
                client.run(client.calls.delivery.ask([["FLUSHALL"]]))
                after.extend(client.run(client.calls.enqueue.many(new_jobs(2))).ids)

        client.run(client.calls.enqueue.many(new_jobs(3)))
        mirror(client, database)
        client.run(client.calls.enqueue.many(new_jobs(1)))
        mirror_of_q = Mirror(Outbox(client), database, "q", on_step=flush)
        with pytest.raises(AuditOff):
            mirror_of_q.turn()
        for _ in range(3):
            mirror_of_q.turn()

        assert client.run(client.calls.reads.counts("q")).audit
    found = states(database)
    database.close()
    assert {found[i] for i in after} == {"ready"}
