"""Forks of durable jobs that have left Redis, and what verify says of forks."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from rq_core import App, NotCopied, RetryPolicy, durable
from rq_core.model.durable.boxes import StepEntry, entry_text, write_header
from rq_core.model.keys import queue_keys
from rq_core.model.unique_names import digest_of
from rq_core.process.worker_process import ServeOptions, load
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
    with pytest.raises(NotCopied, match=f"copied before, as {made.id}, which has ended. .* --name"):
        app.fork("o-1", from_step="pack")


def test_the_option_audit_result_decides_whether_the_log_keeps_the_values_of_steps(
    app: App, database: Database, did: list[str]
) -> None:
    work(app, database)  # From now on, the log keeps values.
    task, kept = app.tasks["digest"], {"keep_result": 60, "audit_result": "full"}
    task.with_options(id="o-1", **kept).enqueue()  # type: ignore[arg-type]
    app.tasks["full"].with_options(id="o-2", audit_result="digest").enqueue()
    work(app, database)
    did.clear()

    app.fork("o-1", from_step="pack")
    work(app, database)

    assert ["pack", "receipt"] == did
    assert ['"charge"', '"pack"', '"receipt"'] == [each[3] for each in saved(database, "o-1")]
    assert {None} == {each[3] for each in saved(database, "o-2")}
    assert [] == verify(database).violations


@pytest.mark.slow
def test_a_flow_that_has_succeeded_is_forked_from_a_log_with_its_values(
    app: App, database: Database, did: list[str]
) -> None:
    app.enable_flows(queue=QUEUE)
    work(app, database)  # From now on, the log keeps values.

    @app.task(queue=QUEUE)
    def twice(n: int) -> int:
        did.append(f"twice {n}")
        return 2 * n

    with app.flow("trip") as flow:
        # The flow is parked when the first node begins.
        first = flow.add(twice.with_options(delay=0.1).call(1), name="first")
        flow.add(twice.call(first.value), name="last")
    flow.enqueue(id="f-1", audit_result="full")
    wait_until(lambda: work(app, database) or "twice 2" in did, "the nodes have run")
    wait_until(lambda: are_empty(app), "claims have emptied the boxes of ended jobs")
    did.clear()

    app.fork("f-1", from_step="last")
    work(app, database)

    assert ["twice 2"] == did
    assert [] == verify(database).violations


def test_a_worker_reads_the_steps_of_a_fork_from_the_audit_database_named_on_its_command_line(
    app: App,
    database: Database,
    did: list[str],
    valkey_url: str,
    audit_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work(app, database)  # From now on, the log keeps values.
    app.tasks["full"].with_options(id="o-1").enqueue()
    work(app, database)
    made = app.fork("o-1", from_step="pack")
    wait_until(lambda: are_empty(app), "claims have emptied the boxes of ended jobs")
    module = ModuleType("shop_of_a_test")
    module.app = App()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    shop(module.app, did, [])
    did.clear()

    options = ServeOptions(
        target=f"{module.__name__}:app", redis_url=valkey_url, audit_url=audit_url
    )
    with load(options) as served:
        work(served, database)

    assert ["pack", "receipt"] == did
    assert saved(database, "o-1") == saved(database, made.id)


def test_verify_finds_nothing_wrong_with_a_fork_of_a_dead_job(
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


@pytest.mark.slow
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


def test_a_job_cannot_be_forked_if_neither_redis_nor_the_log_has_the_values_of_its_steps(
    app: App, database: Database, did: list[str], valkey_url: str
) -> None:
    work(app, database)
    app.tasks["digest"].with_options(id="o-1").enqueue()
    app.tasks["full"].with_options(id="o-2").enqueue()
    work(app, database)
    did.clear()

    with pytest.raises(
        NotCopied,
        match=r"the log has only a digest of what step 'charge' returned.* of a flow that",
    ):
        app.fork("o-1", from_step="pack")
    with App(valkey_url) as blind:
        with pytest.raises(
            NotCopied, match=r"Redis does not have it\. If it has ended, name the audit database"
        ):
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


def test_a_fork_ignores_forged_steps_in_redis_if_its_origin_has_left_redis(
    app: App, database: Database, did: list[str]
) -> None:
    """A person writes the box again while the fork waits. No job has this box, so the doctor cannot compare it."""
    work(app, database)  # From now on, the log keeps values.
    app.tasks["full"].with_options(id="o-1").enqueue()
    work(app, database)
    wait_until(lambda: are_empty(app), "claims have emptied the boxes of ended jobs")
    made = app.fork("o-1", from_step="receipt")
    forge_box(app, database, "o-1")
    did.clear()
    work(app, database)

    assert ["receipt"] == did
    assert saved(database, "o-1") == saved(database, made.id)
    assert [] == verify(database).violations


def forge_box(app: App, database: Database, job_id: str) -> None:
    """Write the box of a job that has ended, with other values. Claims would empty it in a day."""
    asked = "SELECT detail FROM job_event WHERE job_id = :id AND type = 'step_saved' ORDER BY epoch, seq, ordinal"
    steps = [json.loads(row["detail"]) for row in auditlog.rows(database, asked, id=job_id)]
    value, keys = '"forged"', queue_keys(QUEUE)
    life = steps[0]["life"]
    box = {life: write_header(job_id, len(steps), len(steps) * len(value))}
    for each in steps:
        entry = StepEntry(each["name"], True, 1, each["fence"], digest_of(value))
        box[f"{life}|{each['entry']}"] = f"{entry_text(entry)}\n{value}"
    flat = [text for field in box.items() for text in field]
    later = app.client.run(app.client.calls.reads.now_ms(QUEUE)) + 86_400_000
    commands: list[list[Any]] = [
        ["HSET", keys("boxes"), *flat],
        ["ZADD", keys("expiring"), later, f"box|{life}"],
    ]
    app.client.run(app.client.calls.delivery.ask(commands))


def test_a_fork_dies_if_neither_redis_nor_the_log_has_the_steps_any_more(
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
