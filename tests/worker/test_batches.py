"""Batch handlers on a real server: one call runs many jobs, and each job has its own end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest

from rq_core import (
    App,
    Batch,
    BatchContext,
    Cap,
    DeadJob,
    Depends,
    GiveUp,
    Job,
    JobContext,
    NotDurable,
    Snooze,
    Unique,
    current_job,
    durable,
)
from rq_core.connections.client import Client
from rq_core.protocol.calls import claims
from rq_core.worker import Worker
from tests.kit import batching
from tests.kit.batching import LEASE, QUICK, Event
from tests.kit.wait import wait_until, wait_until_async
from tests.kit.witness import Witness
from tests.kit.working import working
from tests.worker.conftest import emptied, event_types, events

QUEUE = "events"
Store = Callable[[list[Job[Event]]], Any]


@pytest.fixture
def shop(valkey_url: str) -> Iterator[App]:
    """Yield an app without tasks, on an empty server."""
    app = App(valkey_url)
    app.queue(QUEUE, lease=LEASE)
    yield app
    app.close()


@pytest.fixture
def server(shop: App) -> Iterator[Client]:
    client = shop.client
    yield client
    client.close()


def task_of(app: App, store: Store, batch: Batch | None = None, **options: Any) -> Any:
    """Make a task whose handler runs batches."""
    options = {"queue": QUEUE, "name": "store", "retry": QUICK, **options}
    return app.task(batch=batch or Batch(500), **options)(store)


def put(app: App, task: Any, events: list[Event]) -> list[str]:
    """Enqueue a job for each event in one call, and return the job ids."""
    jobs = [task.job(event) for event in events]
    app.enqueue_many(jobs)
    return [job.id for job in jobs]


async def run(app: App, client: Client, **options: Any) -> None:
    """Run a worker until no job is left in the queue."""
    async with working(app, queues=(QUEUE,), **options):
        await wait_until_async(emptied(client, QUEUE), "no job is left")


def worker_fence(worker: Worker, job_id: str) -> str:
    """Return the fence of the worker's claim of this job."""
    running = worker._handlers.executor.running
    return next(fence for _, found, fence in running if found == job_id)


def last_error(client: Client, job_id: str) -> dict[str, Any]:
    """Return the error in the last failure of a job."""
    found = [f["error"] for _, f in events(client, job_id, QUEUE) if f.get("error")]
    assert isinstance(found[-1], dict)
    return found[-1]


entered: list[Any] = []


async def session() -> AsyncIterator[str]:
    """A dependency that records each entry and each exit."""
    entered.append("session")
    yield "db"
    entered.append("left")


SUCCEEDED = ["enqueued", "claimed", "succeeded"]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "def"])
async def test_one_call_runs_a_full_batch_of_jobs_with_separate_claims_and_ends(
    shop: App, server: Client, is_async: bool
) -> None:
    """Checks a batch with more jobs than one claim may take. One place collects the jobs of several claims."""
    calls: list[list[int]] = []

    def store(jobs: list[Job[Event]]) -> None:
        calls.append([job.args.n for job in jobs])

    async def store_async(jobs: list[Job[Event]]) -> None:
        store(jobs)

    task = task_of(shop, store_async if is_async else store, Batch(400, linger=0.5))
    ids = put(shop, task, [Event(n) for n in range(900)])
    await run(shop, server, concurrency=1)

    assert sorted(n for call in calls for n in call) == list(range(900))
    assert [len(call) for call in calls] == [400, 400, 100]
    assert event_types(server, ids[500], QUEUE) == SUCCEEDED
    fences = {e.id for e, f in events(server, ids[3], QUEUE) if str(e.event) == "claimed"}
    assert len(fences) == 1


async def test_all_jobs_of_a_batch_have_the_same_value_of_the_field_that_the_option_per_names(
    shop: App, server: Client
) -> None:
    calls: list[list[str]] = []

    async def store(jobs: list[Job[Event]]) -> None:
        calls.append([job.args.table for job in jobs])

    task = task_of(shop, store, Batch(4, linger=0.05, per="table"))
    put(shop, task, [Event(n, "ab"[n % 2]) for n in range(20)])
    await run(shop, server, concurrency=2)

    assert sorted(map(len, calls)) == [2, 2, 4, 4, 4, 4]
    assert all(len(set(call)) == 1 for call in calls)


async def test_batches_that_wait_longer_than_a_lease_for_a_free_place_of_the_worker_lose_no_claim(
    shop: App, server: Client
) -> None:
    """Checks six batches (one for each value of ``per``) that share one place and run one after another."""
    running: list[int] = []
    seen: list[int] = []

    def store(jobs: list[Job[Event]]) -> None:
        running.append(1)
        seen.append(len(running))
        time.sleep(LEASE / 3)
        running.pop()

    task = task_of(shop, store, Batch(50, linger=0.05, per="table"), timeout=0.9 * LEASE)
    ids = put(shop, task, [Event(n, "abcdef"[n % 6]) for n in range(48)])
    await run(shop, server, concurrency=1)

    assert seen == [1] * 6
    assert {tuple(event_types(server, each, QUEUE)) for each in ids} == {tuple(SUCCEEDED)}


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "def"])
async def test_a_failed_member_of_a_batch_fails_no_other_member(
    shop: App, server: Client, is_async: bool
) -> None:
    def store(jobs: list[Job[Event]]) -> None:
        for job in jobs:
            if job.args.n == 7:
                job.fail("constraint")
                job.fail("a second time")

    async def store_async(jobs: list[Job[Event]]) -> None:
        store(jobs)

    task = task_of(shop, store_async if is_async else store)
    ids = put(shop, task, [Event(n) for n in range(20)])
    handle = shop.handle_by_id(QUEUE, ids[7])
    async with working(shop, queues=(QUEUE,)):
        await wait_until_async(lambda: handle.state() == "dead", "the bad job is dead")
        done = lambda: all(event_types(server, i, QUEUE) == SUCCEEDED for i in ids if i != ids[7])  # noqa: E731
        await wait_until_async(done, "the others have succeeded")

    assert event_types(server, ids[7], QUEUE) == [
        "enqueued", "claimed", "failed", "promoted", "claimed", "died",
    ] or event_types(server, ids[7], QUEUE).count("claimed") == 2  # fmt: skip
    error = last_error(server, ids[7])
    assert (error["type"], error["message"]) == ("MemberFailed", "constraint")


async def test_a_batch_handler_can_give_up_or_snooze_one_member(shop: App, server: Client) -> None:
    snoozed: list[int] = []

    async def store(jobs: list[Job[Event]]) -> None:
        for job in jobs:
            if job.args.n == 0:
                job.fail(GiveUp("no use"))
            if job.args.n == 1 and not snoozed:
                snoozed.append(job.context.claim)
                job.fail(Snooze(0.01))

    ids = put(shop, task_of(shop, store), [Event(n) for n in range(3)])
    async with working(shop, queues=(QUEUE,)):
        dead = shop.handle_by_id(QUEUE, ids[0])
        await wait_until_async(lambda: dead.state() == "dead", "the first job is dead")
        again = lambda: "succeeded" in event_types(server, ids[1], QUEUE)  # noqa: E731
        await wait_until_async(again, "the second job has run again")

    assert event_types(server, ids[0], QUEUE).count("claimed") == 1
    assert event_types(server, ids[1], QUEUE).count("claimed") == 2
    assert "failures" not in events(server, ids[1], QUEUE)[-1][1]
    assert event_types(server, ids[2], QUEUE) == SUCCEEDED


async def test_an_exception_of_a_batch_handler_counts_for_each_job_according_to_that_jobs_max_attempts(
    shop: App, server: Client
) -> None:
    """Checks jobs with different numbers of attempts. Before the exception, the handler fails one job itself."""

    def store(jobs: list[Job[Event]]) -> None:
        for job in jobs:
            if job.args.n == 0:
                job.fail("constraint")
        raise ConnectionError("no database")

    task = task_of(shop, store)
    ids = put(shop, task, [Event(0), Event(1)])
    ids.append(task.with_options(max_attempts=1).enqueue(Event(2)).id)
    async with working(shop, queues=(QUEUE,)):
        dead = lambda: all(shop.handle_by_id(QUEUE, i).state() == "dead" for i in ids)  # noqa: E731
        await wait_until_async(dead, "all jobs are dead")

    assert [event_types(server, i, QUEUE).count("claimed") for i in ids] == [2, 2, 1]
    said = [last_error(server, i) for i in ids]
    assert [error["type"] for error in said] == ["MemberFailed", *["ConnectionError"] * 2]
    assert "raise ConnectionError" in said[1]["traceback"]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "def"])
async def test_with_the_option_on_error_halve_only_the_bad_jobs_of_a_batch_fail(
    shop: App, server: Client, is_async: bool
) -> None:
    calls: list[int] = []
    bad = {13, 77}

    def store(jobs: list[Job[Event]]) -> list[int]:
        calls.append(len(jobs))
        if found := bad.intersection(job.args.n for job in jobs):
            raise ValueError(min(found))
        return [job.args.n for job in jobs]

    async def store_async(jobs: list[Job[Event]]) -> list[int]:
        return store(jobs)

    task = task_of(
        shop,
        store_async if is_async else store,
        Batch(100, linger=1, on_error="halve"),
        keep_result=True,
    )
    ids = put(shop, task.with_options(max_attempts=1), [Event(n) for n in range(100)])
    async with working(shop, queues=(QUEUE,)):
        dead = lambda: all(shop.handle_by_id(QUEUE, ids[n]).state() == "dead" for n in bad)  # noqa: E731
        await wait_until_async(dead, "the bad jobs are dead")

    assert calls[0] == 100
    assert len(calls) <= 2 * 2 * 7 + 1
    ends = Counter(event_types(server, i, QUEUE)[-1] for i in ids)
    assert ends["succeeded"] == 98
    assert {last_error(server, ids[n])["message"] for n in bad} == {"13", "77"}
    assert await shop.handle_by_id(QUEUE, ids[50]).result_async(timeout=5) == 50


async def test_with_the_option_on_error_halve_an_outage_causes_at_most_eight_failed_calls(
    shop: App, server: Client
) -> None:
    calls: list[int] = []

    async def store(jobs: list[Job[Event]]) -> None:
        calls.append(len(jobs))
        raise ConnectionError("no database")

    task = task_of(shop, store, Batch(200, linger=1, on_error="halve"))
    ids = put(shop, task.with_options(max_attempts=1), [Event(n) for n in range(200)])
    async with working(shop, queues=(QUEUE,)):
        dead = lambda: all(shop.handle_by_id(QUEUE, i).state() == "dead" for i in ids)  # noqa: E731
        await wait_until_async(dead, "all jobs are dead")

    assert calls[0] == 200
    assert len(calls) == 8


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "def"])
async def test_the_timeout_of_a_batch_fails_all_its_jobs(
    shop: App, server: Client, is_async: bool
) -> None:
    """Checks that the shortest timeout counts. A ``def`` handler runs on, and its late end changes nothing."""
    released = threading.Event()
    stopped: list[bool] = []

    def store(jobs: list[Job[Event]]) -> None:
        released.wait(20)
        stopped.extend(job.cancelled for job in jobs)

    async def store_async(jobs: list[Job[Event]]) -> None:
        try:
            await asyncio.sleep(20)
        finally:
            stopped.extend(job.cancelled for job in jobs)

    task = task_of(shop, store_async if is_async else store, timeout=20, on_dead=None)
    once = task.with_options(max_attempts=1)
    ids = put(shop, once, [Event(n) for n in range(3)])
    ids.append(once.with_options(timeout=0.2).enqueue(Event(3)).id)
    async with working(shop, queues=(QUEUE,)):
        dead = lambda: all(shop.handle_by_id(QUEUE, i).state() == "dead" for i in ids)  # noqa: E731
        await wait_until_async(dead, "all jobs are dead")
        released.set()
        await wait_until_async(lambda: len(stopped) == 4, "the handler has ended")

    assert {last_error(server, i)["type"] for i in ids} == {"HandlerTimeout"}
    assert stopped == [True] * 4
    assert {event_types(server, i, QUEUE).count("settlement_refused") for i in ids} == {0}


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([1, 2], "returned 2 results for 3 jobs"),
        ([1, 2, 3, 4], "returned 4 results for 3 jobs"),
        (3, "returned a int"),
    ],
)
async def test_a_wrong_number_of_results_fails_all_jobs(
    shop: App, server: Client, found: Any, says: str
) -> None:
    def store(jobs: list[Job[Event]]) -> Any:
        return found

    task = task_of(shop, store, Batch(3, linger=2, on_error="halve"))
    ids = put(shop, task.with_options(max_attempts=1), [Event(n) for n in range(3)])
    async with working(shop, queues=(QUEUE,)):
        dead = lambda: all(shop.handle_by_id(QUEUE, i).state() == "dead" for i in ids)  # noqa: E731
        await wait_until_async(dead, "all jobs are dead")

    assert all(says in last_error(server, i)["message"] for i in ids)


async def test_each_job_keeps_its_own_result(shop: App, server: Client) -> None:
    async def store(jobs: list[Job[Event]]) -> list[dict[str, int]]:
        return [{"n": job.args.n} for job in jobs]

    task = task_of(shop, store, keep_result=True)
    handles = [task.enqueue(Event(n)) for n in range(5)]
    handles.append(task.with_options(keep_result=False).enqueue(Event(5)))
    await run(shop, server)

    assert [await h.result_async(timeout=5) for h in handles[:5]] == [{"n": n} for n in range(5)]
    assert "result" not in str(events(server, handles[5].id, QUEUE)[-1][1])


@pytest.mark.slow
def test_a_killed_worker_causes_one_loss_for_each_job_of_its_batch(
    valkey_url: str, tmp_path: Any
) -> None:
    witness = Witness(tmp_path / "witness.jsonl")
    app = batching.app
    app.connect_to(valkey_url)
    client = app.client
    ids = put(app, batching.sleep_once, [Event(0), Event(1)])
    try:
        with batching.worker_process(valkey_url, witness) as first:
            wait_until(lambda: witness.lines("batch"), "the batch runs", timeout=30)
            os.kill(first.pid, signal.SIGKILL)
            with batching.worker_process(valkey_url, witness):
                wait_until(emptied(client, QUEUE), "all jobs have ended", timeout=60)
        assert sorted(witness.lines("batch")[0]["jobs"]) == [0, 1]
        later = witness.lines("batch")[1:]
        assert sorted(line["jobs"] for line in later) == [[0], [1]]
        for job_id in ids:
            log = events(client, job_id, QUEUE)
            types = [str(entry.event) for entry, _ in log if str(entry.event) != "rolled_back"]
            assert types[:3] == ["enqueued", "claimed", "lease_expired"]
            assert types[-1] == "succeeded"
            assert [f["losses"] for e, f in log if str(e.event) == "lease_expired"] == [1]
    finally:
        app.close()


async def test_a_worker_that_stops_gives_jobs_that_wait_for_their_batch_back_to_the_queue(
    shop: App, server: Client
) -> None:
    calls: list[int] = []

    async def store(jobs: list[Job[Event]]) -> None:
        calls.append(len(jobs))

    shop.queue(QUEUE, lease=60)
    ids = put(shop, task_of(shop, store, Batch(500, linger=10)), [Event(n) for n in range(5)])
    began = time.monotonic()
    async with working(shop, queues=(QUEUE,), grace=30.0):
        running = shop.handle_by_id(QUEUE, ids[-1])
        await wait_until_async(lambda: running.state() == "running", "the jobs are claimed")

    assert time.monotonic() - began < 8
    assert calls == []
    for each in ids:
        assert event_types(server, each, QUEUE) == ["enqueued", "claimed", "rolled_back"]
        assert events(server, each, QUEUE)[-1][1]["reason"] == "shutdown"
        assert shop.handle_by_id(QUEUE, each).state() == "ready"


async def test_a_worker_that_retires_runs_the_jobs_that_wait_for_their_batch(
    shop: App, server: Client
) -> None:
    calls: list[int] = []

    async def store(jobs: list[Job[Event]]) -> None:
        calls.append(len(jobs))

    shop.queue(QUEUE, lease=60)
    put(shop, task_of(shop, store, Batch(500, linger=10)), [Event(n) for n in range(5)])
    began = time.monotonic()
    await run(shop, server, max_jobs=5)

    assert time.monotonic() - began < 8
    assert calls == [5]


async def test_jobs_of_a_batch_whose_handler_outlasts_the_grace_are_given_back_to_the_queue(
    shop: App, server: Client
) -> None:
    begun = asyncio.Event()
    ended: list[str] = []

    async def store(jobs: list[Job[Event]]) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cleaned up")

    ids = put(shop, task_of(shop, store, Batch(5)), [Event(n) for n in range(5)])
    async with working(shop, queues=(QUEUE,), grace=0.1):
        await begun.wait()

    assert ended == ["cleaned up"]
    assert {event_types(server, each, QUEUE)[-1] for each in ids} == {"rolled_back"}


async def test_cancelled_lost_and_expired_jobs_affect_no_other_job_of_the_batch(
    shop: App, server: Client
) -> None:
    """Checks two cancelled jobs, one lost job, and one job that expires before the batch begins.

    The handler fails one of the cancelled jobs.
    """
    begun, seen = threading.Event(), threading.Event()
    batches: list[list[int]] = []

    def store(jobs: list[Job[Event]]) -> None:
        batches.append([job.args.n for job in jobs])
        by_n = {job.args.n: job for job in jobs}
        begun.set()
        wait_until(lambda: all(by_n[n].cancelled for n in (0, 1, 2)), "three jobs are ended")
        assert not by_n[3].cancelled
        by_n[0].fail("cancelled")
        seen.set()

    task = task_of(shop, store, Batch(4))
    server.run(server.calls.admin.configure(QUEUE, {"paused": 1}))
    expired = task.with_options(expires=0.1).enqueue(Event(9)).id
    ids = put(shop, task, [Event(n) for n in range(4)])
    await asyncio.sleep(0.15)
    server.run(server.calls.admin.configure(QUEUE, {"paused": 0}))
    async with working(shop, queues=(QUEUE,)) as worker:
        await wait_until_async(begun.is_set, "the batch runs")
        for each in ids[:2]:
            shop.handle_by_id(QUEUE, each).cancel()
        fence = worker_fence(worker, ids[2])
        server.run(server.calls.admin.configure(QUEUE, {"paused": 1}))
        lost = claims.rollback(QUEUE, worker.name, [(ids[2], fence, "lost", "null", "", 0)])
        assert server.run(lost) == {ids[2]: "ready"}
        await wait_until_async(seen.is_set, "the handler has seen it")
        done = lambda: "succeeded" in event_types(server, ids[3], QUEUE)  # noqa: E731
        await wait_until_async(done, "the last job has succeeded")

    assert batches == [[0, 1, 2, 3]]
    assert event_types(server, expired, QUEUE) == ["enqueued", "expired"]
    assert event_types(server, ids[0], QUEUE)[-1] == "cancelled"
    assert event_types(server, ids[1], QUEUE)[-1] == "succeeded"
    assert event_types(server, ids[2], QUEUE) == ["enqueued", "claimed", "rolled_back"]
    assert event_types(server, ids[3], QUEUE) == SUCCEEDED


async def test_a_job_that_is_cancelled_while_its_batch_waits_leaves_the_batch(
    shop: App, server: Client
) -> None:
    """Checks two batches that wait for the only place. In one of them, all jobs are cancelled."""
    batches: list[list[int]] = []
    released = asyncio.Event()

    async def store(jobs: list[Job[Event]]) -> None:
        batches.append([job.args.n for job in jobs])
        if jobs[0].args.table == "first":
            await released.wait()

    task = task_of(shop, store, Batch(5, linger=0.01, per="table"))
    found = [Event(0, "first"), Event(1, "second"), Event(2, "second"), Event(3, "third")]
    ids = put(shop, task, found)
    async with working(shop, queues=(QUEUE,), concurrency=1):
        await wait_until_async(lambda: batches, "the first batch runs")
        for each in (ids[1], ids[3]):
            shop.handle_by_id(QUEUE, each).cancel()
            ended = lambda each=each: event_types(server, each, QUEUE)[-1] == "cancelled"  # noqa: E731
            await wait_until_async(ended, "the job is cancelled")
        released.set()
        await wait_until_async(emptied(server, QUEUE), "no job is left")

    assert batches == [[0], [2]]


async def test_an_async_batch_handler_is_stopped_when_every_job_of_its_batch_is_cancelled(
    shop: App, server: Client
) -> None:
    begun = asyncio.Event()

    async def store(jobs: list[Job[Event]]) -> None:
        begun.set()
        await asyncio.sleep(60)

    ids = put(shop, task_of(shop, store, Batch(2)), [Event(0), Event(1)])
    async with working(shop, queues=(QUEUE,)):
        await begun.wait()
        for each in ids:
            shop.handle_by_id(QUEUE, each).cancel()
        await wait_until_async(emptied(server, QUEUE), "both jobs are cancelled", timeout=20)

    assert [event_types(server, each, QUEUE)[-1] for each in ids] == ["cancelled"] * 2


async def test_caps_and_unique_names_apply_to_each_job_of_a_batch(
    shop: App, server: Client
) -> None:
    calls: list[list[str]] = []

    async def store(jobs: list[Job[Event]]) -> None:
        calls.append([job.args.table for job in jobs])

    unique = Unique(per="n")
    caps = [Cap(2, per="table")]
    task = task_of(shop, store, Batch(500, linger=0.05), caps=caps, unique=unique)
    handles = [task.enqueue(Event(n % 6, "a")) for n in range(12)]
    assert len({handle.id for handle in handles}) == 6
    await run(shop, server)

    assert [len(call) for call in calls] == [2, 2, 2]


async def test_middleware_and_dependencies_are_entered_once_for_a_batch(
    shop: App, server: Client
) -> None:
    entered.clear()

    @shop.around
    def around(job: JobContext) -> Iterator[None]:
        assert isinstance(job, BatchContext)
        with pytest.raises(AttributeError, match="its jobs have"):
            job.id  # noqa: B018 - the access raises
        entered.append((job.task, job.queue, len(job.jobs)))
        yield

    async def store(jobs: list[Job[Event]], db: Annotated[str, Depends(session)]) -> None:
        assert db == "db"
        assert isinstance(found := current_job(), BatchContext)
        assert [job.id for job in found.jobs] == [job.id for job in jobs]
        with pytest.raises(NotDurable, match="a batch handler runs several jobs"):
            durable()

    task = task_of(shop, store, Batch(3))
    ids = put(shop, task, [Event(n) for n in range(3)])
    await run(shop, server)

    assert entered == [("store", QUEUE, 3), "session", "left"]
    assert event_types(server, ids[0], QUEUE) == SUCCEEDED


@pytest.mark.slow
async def test_a_worker_runs_batches_beside_other_queues_and_their_hooks(
    shop: App, server: Client
) -> None:
    ran: Counter[str] = Counter()

    def died(job: DeadJob) -> None:
        ran[f"died {job.arguments['n']}"] += 1

    async def store(jobs: list[Job[Event]]) -> None:
        ran["stored"] += len(jobs)
        for job in jobs:
            if job.args.n == 3:
                job.fail(GiveUp("no use"))

    @shop.task(queue="mail")
    async def send(n: int) -> None:
        ran["sent"] += 1

    task = task_of(shop, store, Batch(20, linger=0.05), on_dead=died)
    put(shop, task, [Event(n) for n in range(100)])
    shop.enqueue_many(send.job(n) for n in range(100))
    async with working(shop, queues=(QUEUE, "mail"), concurrency=2):
        await wait_until_async(lambda: ran["died 3"], "the hook has run")
        await wait_until_async(lambda: ran["sent"] == ran["stored"] == 100, "all jobs have run")

    assert ran == {"stored": 100, "sent": 100, "died 3": 1}
