"""Forks of durable jobs that have left Redis, and what verify says of forks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from rq_core import App, NotCopied, RetryPolicy, durable
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls import claims
from rq_core.worker import Worker, WorkerOptions
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.wait import wait_until

QUEUE = "orders"


def shop(app: App, did: list[str], fails: list[str]) -> None:
    def named(name: str) -> str:
        did.append(name)
        if name in fails:
            raise ValueError(name)
        return name

    async def run_steps() -> None:
        job = durable()
        for name in ("charge", "pack", "receipt"):
            await job.step(name, named, name)

    once = RetryPolicy(max_attempts=1)
    app.task(name="full", queue=QUEUE, retry=once, keep_result=True, audit_result="full")(run_steps)
    app.task(name="digest", queue=QUEUE, retry=once)(run_steps)


@pytest.fixture
def did() -> list[str]:
    return []


@pytest.fixture
def fails() -> list[str]:
    return []


@pytest.fixture
def app(
    valkey_url: str, audit_url: str, database: Database, did: list[str], fails: list[str]
) -> Iterator[App]:
    with App(valkey_url, audit_url, audit_payload="full") as made:
        shop(made, did, fails)
        yield made


def work(app: App, database: Database) -> None:
    """Run a worker until no job is left that may run, and mirror all events."""

    async def burst() -> None:
        try:
            await Worker(app, WorkerOptions(queues=(QUEUE,), burst=True)).run()
        finally:
            await asyncio.get_running_loop().shutdown_default_executor()
            await app.aclose()

    asyncio.run(burst())
    auditlog.drain(Mirror(Outbox(app.client), database, QUEUE))


def saved(database: Database, job_id: str) -> list[Any]:
    asked = "SELECT detail FROM job_event WHERE job_id = :id AND type = 'step_saved' ORDER BY epoch, seq, ordinal"
    found = [json.loads(row["detail"]) for row in auditlog.rows(database, asked, id=job_id)]
    return [(each["entry"], each["name"], each["digest"], each.get("value")) for each in found]


def test_a_job_that_has_left_redis_is_forked_from_a_log_with_its_values(
    app: App, database: Database, did: list[str]
) -> None:
    work(app, database)  # From now on, the log keeps values.
    app.tasks["full"].with_options(id="o-1").enqueue()
    work(app, database)
    did.clear()

    made = app.fork("o-1", from_step="pack", by="ann", reason="wrong box")
    work(app, database)

    assert ["pack", "receipt"] == did
    assert saved(database, "o-1") == saved(database, made.id)
    assert app.fork("o-1", from_step="charge").id  # It needs no value.
    work(app, database)
    said = auditlog.one(
        database,
        "SELECT worker, detail FROM job_event WHERE job_id = :id AND type = 'enqueued'",
        id=made.id,
    )
    assert ("ann", "fork of o-1 from pack: wrong box") == (
        said["worker"],
        json.loads(said["detail"])["why"],
    )
    assert [] == verify(database).violations
    with pytest.raises(NotCopied, match="copied before"):
        app.fork("o-1", from_step="pack")


def test_verify_holds_for_a_fork_of_a_dead_job_beside_redis(
    app: App, database: Database, did: list[str], fails: list[str]
) -> None:
    fails.append("receipt")
    app.tasks["digest"].with_options(id="o-1").enqueue()
    work(app, database)
    made = app.fork("o-1")
    work(app, database)

    assert ["charge", "pack", "receipt", "receipt"] == did
    assert saved(database, "o-1") == saved(database, made.id)
    assert [] == compare(app.client, database, QUEUE)[0]
    result = verify(database)
    assert (LogVerdict.HOLDS, []) == (result.verdict, result.violations)


def test_verify_holds_for_a_fork_with_waits_and_sleeps(
    app: App, database: Database, did: list[str]
) -> None:
    """Checks a wait that took a signal, one that was over, a sleep, and a wait that is not over at the fork."""

    @app.task(queue=QUEUE)
    async def waiting() -> None:
        job = durable()
        did.append(await job.wait("approval", str))
        await job.wait("objection", str, timeout=0.001)
        await job.sleep("nap", 0.001)
        did.append(await job.wait("delivery", str))

    handle = waiting.with_options(id="o-1").enqueue()
    app.signal(handle, "approval", "yes")
    wait_until(
        lambda: work(app, database) or len(did) > 1 or waits_for(app, "delivery"), "it waits"
    )
    made = app.fork("o-1")
    work(app, database)
    for each in (handle, made):
        app.signal(each, "delivery", each.id)
    did.clear()
    work(app, database)

    assert {"yes", "o-1", made.id} == set(did)
    assert ["approval", "objection", "nap", "delivery"] == [e[1] for e in saved(database, made.id)]
    assert [] == compare(app.client, database, QUEUE)[0]
    result = verify(database)
    assert (LogVerdict.HOLDS, []) == (result.verdict, result.violations)


def waits_for(app: App, name: str) -> bool:
    """Return whether the job o-1 has begun the wait ``name``."""
    found = app.client.run(app.client.calls.reads.steps("o-1", [QUEUE]))
    return found is not None and name in [each.name for each in found.entries.values()]


def are_empty(app: App) -> bool:
    """Make a claim, which empties boxes of ended jobs, and return whether the queue has no box."""
    app.client.run(claims.claim(QUEUE, "w-1", 0))
    (count,) = app.client.run(app.client.calls.delivery.ask([["HLEN", queue_keys(QUEUE)("boxes")]]))
    return count == 0


def test_a_job_whose_values_no_one_has_is_not_forked(
    app: App, database: Database, did: list[str], valkey_url: str
) -> None:
    work(app, database)
    app.tasks["digest"].with_options(id="o-1").enqueue()
    app.tasks["full"].with_options(id="o-2").enqueue()
    work(app, database)
    did.clear()

    with pytest.raises(NotCopied, match="the log has only a digest of what step 'charge' returned"):
        app.fork("o-1", from_step="pack")
    with App(valkey_url) as blind:
        with pytest.raises(NotCopied, match="neither Redis nor an audit log has the job"):
            blind.fork("o-2", queue=QUEUE)
        made = app.fork("o-2", from_step="pack")
        wait_until(lambda: are_empty(app), "claims have emptied the boxes of ended jobs")
        shop(blind, did, [])
        work(blind, database)

    assert [] == did
    asked = "SELECT state FROM job WHERE job_id = :id"
    assert "dead" == auditlog.one(database, asked, id=made.id)["state"]
    found = app.client.run(app.client.calls.reads.job(made.id, [QUEUE]))
    assert "this worker has no audit log" in str(found)


def test_a_fork_whose_steps_neither_redis_nor_the_log_has_any_more_dies(
    app: App, database: Database, did: list[str], fails: list[str]
) -> None:
    fails.append("receipt")
    app.tasks["digest"].with_options(id="o-1").enqueue()
    work(app, database)
    made = app.fork("o-1")
    app.client.run(app.client.calls.admin.prune(QUEUE, ["o-1"]))
    wait_until(lambda: are_empty(app), "claims have emptied the boxes of ended jobs")
    did.clear()
    work(app, database)

    assert [] == did
    found = app.client.run(app.client.calls.reads.job(made.id, [QUEUE]))
    assert "have left Redis, and the audit log does not have them" in str(found)
