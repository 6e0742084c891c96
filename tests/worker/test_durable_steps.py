"""Steps of durable jobs on a real server: steps that Redis lost, a late heartbeat, and a full log."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rq_core import LeaseLost, RetryPolicy, current_job, durable, durable_sync, testing
from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.errors import AuditBacklogFull
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls.boxes import BATCH_MAX
from rq_core.worker.execution.saver import Saver
from rq_core.worker.worker import Worker
from tests.kit import crew
from tests.kit.wait import wait_until_async
from tests.kit.working import working
from tests.worker.conftest import RunWorker, event_types, events, lose

QUEUE = "crew"


@pytest.fixture
def did() -> list[Any]:
    return []


@pytest.fixture
def own(app: App) -> Iterator[App]:
    """Yield a separate app for this test, on the same server as the crew's app."""
    made = App(app.redis_url)
    made.queue(QUEUE, lease=crew.LEASE)
    yield made
    made.close()


async def ended(client: Client, job_id: str) -> None:
    await wait_until_async(
        lambda: "succeeded" in event_types(client, job_id), "it has succeeded", timeout=20
    )


def entries_saved(client: Client, job_id: str) -> list[tuple[int, str]]:
    return [
        (facts["entry"], facts["name"])
        for entry, facts in events(client, job_id)
        if str(entry.event) == "step_saved"
    ]


async def test_a_worker_repeats_the_save_of_steps_that_redis_lost(
    own: App, client: Client, did: list[Any]
) -> None:
    control: Any = client

    async def note(n: int) -> int:
        did.append(n)
        return n

    @own.task(queue=QUEUE)
    async def loses_steps() -> None:
        job = durable()
        for n in range(3):
            await job.step("note", note, n)
        # As a failover to a replica that lacks the last two.
        keys = queue_keys(QUEUE)
        ask = control.calls.delivery.ask
        (boxes,) = control.run(ask([["HGETALL", keys("boxes")]]))
        life = min(boxes[::2] if isinstance(boxes, list) else boxes, key=len)
        header = f"job={current_job().id} entries=1 bytes=1"
        lose = [
            ["HDEL", keys("boxes"), f"{life}|2", f"{life}|3"],
            ["HSET", keys("boxes"), life, header],
        ]
        control.run(ask(lose))
        await job.step("note", note, 3)

    handle = loses_steps.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        await ended(client, handle.id)

    assert [0, 1, 2, 3] == did
    names = ["note", "note#2", "note#3", "note#4"]
    first = [*enumerate(names[:3], 1)]
    assert [*first, *enumerate(names[1:], 2)] == entries_saved(client, handle.id)


async def test_the_next_wait_does_not_take_a_signal_that_was_taken_before_a_failover(
    own: App, client: Client, did: list[Any]
) -> None:
    """Checks a failover to a replica on which the first wait has begun, and has not yet taken the signal."""
    keys = queue_keys(QUEUE)

    def ask(*command: Any) -> Any:
        return client.run(client.calls.delivery.ask([list(command)]))[0]

    @own.task(queue=QUEUE)
    async def asks_twice() -> None:
        job = durable()
        fields = ask("HGETALL", keys("boxes"))
        older = fields if isinstance(fields, list) else [n for each in fields.items() for n in each]
        did.append(await job.wait("approval", str))
        if older and len(did) == 1:
            ask("DEL", keys("boxes"))
            ask("HSET", keys("boxes"), *older)
        did.append(await job.wait("approval", str))

    handle = asks_twice.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        for number, value in enumerate(("first", "second"), 1):
            await wait_until_async(
                lambda n=number: event_types(client, handle.id).count("parked") == n,  # type: ignore[misc]
                "it is parked",
            )
            await own.signal_async(handle, "approval", value)
        await ended(client, handle.id)

    assert ["first", "first", "second"] == did


async def test_a_run_whose_waits_are_over_reads_the_saved_steps_once(
    own: App, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Saver.load

    async def counted(saver: Saver, context: Any, first: int = 1) -> Any:
        did.append(f"read from {first}")
        return await load(saver, context, first)

    monkeypatch.setattr(Saver, "load", counted)

    @own.task(queue=QUEUE, retry=RetryPolicy(max_attempts=2, backoff="fixed", base=0.01))
    async def asks_twice() -> None:
        job = durable()
        if current_job().claim == 1:
            raise ValueError("the first claim has no box to read")
        did.append(await job.wait("approval", str))
        did.append(await job.wait("approval", str))
        await job.sleep("nap", 0)
        did.append("end")

    handle = asks_twice.enqueue()
    for value in ("first", "second"):
        await own.signal_async(handle, "approval", value)
    async with working(own, queues=(QUEUE,), grace=5.0):
        await wait_until_async(lambda: did[-1:] == ["end"], "its handler has ended", timeout=20)

    assert ["read from 1", "first", "second", "end"] == did


async def test_a_run_gets_a_signal_value_that_is_too_large_for_the_answer_to_its_wait(
    own: App, client: Client, did: list[Any]
) -> None:
    @own.task(queue=QUEUE, retry=RetryPolicy(max_attempts=1))
    async def asks_twice() -> None:
        job = durable()
        did.append(await job.wait("approval", str))
        did.append(await job.wait("approval", str))

    values = ["small", "x" * 5_000]
    handle = asks_twice.enqueue()
    for value in values:
        await own.signal_async(handle, "approval", value)
    async with working(own, queues=(QUEUE,), grace=5.0):
        await wait_until_async(
            lambda: {"succeeded", "failed", "died"} & {*event_types(client, handle.id)},
            "its handler has ended",
            timeout=20,
        )

    assert values == did


async def test_the_log_has_the_values_of_steps_that_are_saved_again(
    own: App, client: Client
) -> None:
    """Checks audit_result="full". Each step is logged a second time with its value, and the wait without a value."""

    def note(n: int) -> int:
        return n

    @own.task(queue=QUEUE, keep_result=60.0, audit_result="full")
    def loses_steps() -> None:
        job = durable_sync()
        for n in range(2):
            job.step("note", note, n)
        job.wait("approval", str)
        client.run(client.calls.delivery.ask([["DEL", queue_keys(QUEUE)("boxes")]]))
        job.step("last", note, 2)

    client.run(client.calls.audit.attach(QUEUE, "db-1"))
    handle = loses_steps.enqueue()
    await own.signal_async(handle, "approval", "secret")
    async with working(own, queues=(QUEUE,), grace=5.0):
        await ended(client, handle.id)

    first = [(1, "0"), (2, "1"), (3, None)]
    assert [*first, *first, (4, "2")] == [
        (facts["entry"], facts["value"])
        for entry, facts in events(client, handle.id)
        if str(entry.event) == "step_saved"
    ]


async def test_a_step_whose_save_a_failover_lost_is_saved_with_the_next_step(
    own: App, client: Client, did: list[Any]
) -> None:
    """Checks a replica that had received the beginning of the step, and not its save."""
    keys = queue_keys(QUEUE)

    def ask(*command: Any) -> Any:
        return client.run(client.calls.delivery.ask([list(command)]))[0]

    async def charge() -> int:
        fields = ask("HGETALL", keys("boxes"))
        did.append(fields if isinstance(fields, list) else [n for i in fields.items() for n in i])
        return 1

    async def note() -> int:
        return 2

    @own.task(queue=QUEUE)
    async def begins() -> None:
        job = durable()
        await job.options(begin=True).step("charge", charge)
        ask("DEL", keys("boxes"))
        ask("HSET", keys("boxes"), *did[0])
        await job.step("note", note)

    handle = begins.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        await ended(client, handle.id)

    assert [(1, "charge"), (1, "charge"), (2, "note")] == entries_saved(client, handle.id)


async def test_parallel_steps_whose_saves_a_failover_lost_are_saved_with_the_next_step(
    own: App, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks more steps than one call can save."""
    count, keys = BATCH_MAX + 50, queue_keys(QUEUE)
    begun, sizes, sent = asyncio.Barrier(count), list[int](), Saver._sent

    def noted(self: Saver, queue: str, records: Any) -> Any:
        sizes.append(len(records))
        return sent(self, queue, records)

    monkeypatch.setattr(Saver, "_sent", noted)

    def ask(*command: Any) -> Any:
        return client.run(client.calls.delivery.ask([list(command)]))[0]

    async def charge(older: list[str]) -> int:
        if await begun.wait() == 0:
            fields = ask("HGETALL", keys("boxes"))
            older += fields if isinstance(fields, list) else [n for i in fields.items() for n in i]
        await begun.wait()
        return 1

    async def note() -> int:
        return 2

    @own.task(queue=QUEUE)
    async def begins() -> None:
        older: list[str] = []
        job = durable()
        await asyncio.gather(
            *(
                job.options(begin=True, key=str(n)).step("charge", charge, older)
                for n in range(count)
            )
        )
        ask("DEL", keys("boxes"))
        ask("HSET", keys("boxes"), *older)
        await job.step("note", note)

    handle = begins.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        await ended(client, handle.id)

    saved = [number for number, _ in entries_saved(client, handle.id)]
    every = [*range(1, count + 1)]
    assert every == sorted(saved[:count])
    assert [*every, count + 1] == saved[count:]
    assert [BATCH_MAX, 51] == sizes[-2:]


async def test_a_step_can_be_saved_although_a_signal_created_the_store_of_steps_after_the_claim(
    own: App, client: Client, did: list[Any]
) -> None:
    """Checks a signal that creates the job's box after the claim has found none. The box keeps the signal and the
    step."""

    async def note() -> int:
        await own.signal_async(handle, "approval", "early")
        return 1

    @own.task(queue=QUEUE, retry=RetryPolicy(max_attempts=2, base=0))
    async def fails_first() -> None:
        if current_job().claim == 1:
            raise ValueError
        job = durable()
        did.append(await job.step("note", note))
        did.append(await job.wait("approval", str))

    handle = fails_first.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        await ended(client, handle.id)

    assert [1, "early"] == did


async def test_a_step_does_not_begin_before_a_heartbeat_if_the_lease_may_have_expired(
    own: App, client: Client, did: list[Any]
) -> None:
    """Checks a process that was suspended. A step begins only after Redis has extended the lease."""
    workers: list[Worker] = []

    async def note() -> None:
        did.append(workers[0]._handlers.leases.last_success)

    @own.task(queue=QUEUE)
    async def late() -> None:
        leases = workers[0]._handlers.leases
        long_ago = leases.last_success = time.monotonic() - 10 * crew.LEASE
        did.append(long_ago)
        await durable().step("note", note)

    handle = late.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0) as worker:
        workers.append(worker)
        await ended(client, handle.id)

    long_ago, extended = did[-2:]
    assert extended > long_ago


async def test_a_thread_begins_no_step_after_the_heartbeat_that_reports_its_lease_lost(
    own: App, client: Client, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a busy event loop, which cannot ask the handler to stop after the heartbeat."""
    may_go, over = threading.Event(), threading.Event()

    def note() -> None:
        did.append("step")
        over.set()

    @own.task(queue=QUEUE)
    def late() -> None:
        did.append("begun")
        may_go.wait(20)
        try:
            durable_sync().step("note", note)
        finally:
            over.set()

    async with working(own, queues=(QUEUE,), grace=5.0, concurrency=1) as worker:
        leases = worker._handlers.leases
        beat = leases.beat
        monkeypatch.setattr(leases, "beat", lambda: None)
        handle = late.enqueue()
        await wait_until_async(lambda: did, "it runs", timeout=20)
        (running,) = worker._handlers.executor.running.values()
        leases.last_success = time.monotonic() - 10 * crew.LEASE
        lose(client, worker, handle.id, running.claim.fence)
        may_go.set()
        threading.Thread(target=beat).start()
        assert over.wait(20)  # blocks the loop
        await wait_until_async(lambda: not worker._handlers.executor.running, "it has ended")

    assert ["begun"] == did
    assert "settlement_refused" not in event_types(client, handle.id)


async def test_an_isolated_handler_that_must_stop_begins_no_step(
    own: App,
) -> None:
    saver = Saver(own.connections.async_client(), "w-1", lambda _queue: True)
    with testing.job_running() as context:
        running: Any = SimpleNamespace(context=context)
        assert await saver.answer(running, "lease", [])
        context.tell(LeaseLost())
        assert not await saver.answer(running, "lease", [])


async def test_a_worker_stops_extending_a_claim_if_redis_refuses_a_save_under_it(
    own: App, client: Client, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[Worker] = []

    async def note() -> None:
        job = current_job()
        lose(client, workers[0], job.id, job.fence)
        did.append("step")

    @own.task(queue=QUEUE)
    async def late() -> None:
        await durable().step("note", note)

    async with working(own, queues=(QUEUE,), grace=5.0, concurrency=1) as worker:
        workers.append(worker)
        leases = worker._handlers.leases
        monkeypatch.setattr(leases, "beat", lambda: None)
        late.enqueue()
        await wait_until_async(lambda: did, "it runs", timeout=20)
        await wait_until_async(lambda: not worker._handlers.executor.running, "it has ended")
        assert {QUEUE: {}} == leases._held


async def test_the_save_of_a_step_waits_while_the_backlog_is_at_twice_its_limit(
    own: App, client: Client, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, sent = list[AuditBacklogFull](), Saver._sent

    async def noted(self: Saver, queue: str, records: Any) -> Any:
        try:
            return await sent(self, queue, records)
        except AuditBacklogFull as error:
            refused.append(error)
            raise

    monkeypatch.setattr(Saver, "_sent", noted)

    def configure(**values: int) -> None:
        client.run(client.calls.admin.configure(QUEUE, values))

    async def note() -> None:
        did.append("step")
        configure(backlog_max_jobs=1)

    @own.task(queue=QUEUE)
    async def full_log() -> None:
        await durable().step("note", note)

    client.run(client.calls.audit.attach(QUEUE, "db-1"))
    handle = full_log.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        await wait_until_async(lambda: refused, "the save is refused", timeout=20)
        assert "step_saved" not in event_types(client, handle.id)
        configure(backlog_max_jobs=1_000)
        await ended(client, handle.id)

    assert ["step"] == did
    assert [(1, "note")] == entries_saved(client, handle.id)


async def test_a_job_is_retried_if_a_full_backlog_refuses_its_save_until_its_lease_ends(
    own: App, client: Client, did: list[Any]
) -> None:
    """A run that has not saved what its step did must not count as a success."""
    lease_holds = [True]

    def configure(**values: int) -> None:
        client.run(client.calls.admin.configure(QUEUE, values))

    async def note() -> None:
        did.append("step")
        if len(did) == 1:
            configure(backlog_max_jobs=1)
            lease_holds.clear()

    @own.task(queue=QUEUE, retry=RetryPolicy(max_attempts=2, base=0.01))
    async def full_log() -> None:
        await durable().step("note", note)

    client.run(client.calls.audit.attach(QUEUE, "db-1"))
    handle = full_log.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0) as worker:
        saver = worker._handlers.executor._saver
        assert saver is not None
        saver.lease_holds = lambda _queue: bool(lease_holds)
        await wait_until_async(
            lambda: "retried" in event_types(client, handle.id), "it is retried", timeout=20
        )
        assert "step_saved" not in event_types(client, handle.id)
        configure(backlog_max_jobs=1_000)
        lease_holds.append(True)
        await ended(client, handle.id)

    assert ["step", "step"] == did
    assert [(1, "note")] == entries_saved(client, handle.id)


async def test_an_isolated_handler_that_waits_or_sleeps_gets_one_clear_error(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.waits_apart.enqueue()
    async with run_worker():
        await ended(client, handle.id)

    for call, line in zip(("wait()", "sleep()"), witness.lines("refused"), strict=True):
        assert line["says"].startswith(f"{call} cannot be used here: a handler with isolation")
        assert (
            "Leave out isolation, or do the isolated work in a job of another task" in line["says"]
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", [crew.durable_apart, crew.durable_apart_at_once], ids=lambda t: t.name
)
async def test_an_isolated_handler_does_not_repeat_its_saved_steps(
    task: Any, app: App, client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = task.enqueue(4)
    async with run_worker():
        await ended(client, handle.id)

    assert [0, 1, 2, 3] == sorted(line["n"] for line in witness.lines("effect"))
    assert [1, 2, 3, 4] == sorted(number for number, _ in entries_saved(client, handle.id))
    assert 2 == event_types(client, handle.id).count("claimed")
    # The process was killed, which is a failure; the first claim's steps came before it.
    saved = [
        facts for entry, facts in events(client, handle.id) if str(entry.event) == "step_saved"
    ]
    bases = ["1/0"] * 2 if task is crew.durable_apart else []
    assert bases == [facts["base"] for facts in saved if facts["base"]]
