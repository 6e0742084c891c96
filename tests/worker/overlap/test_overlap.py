"""A worker's turns overlap with its handlers. A turn is one call that settles ended jobs and claims new jobs.

Many jobs share a turn. No job begins late, and no job begins twice.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import redis.asyncio

from rq_core import GiveUp
from rq_core.app.app import App
from rq_core.connections.transport import AsyncPoolTransport, Hear
from rq_core.model.job import Claim
from rq_core.scripts.script import function
from rq_core.worker import Worker, WorkerOptions, wakeups
from tests.kit.transports import Counted
from tests.kit.wait import wait_until_async
from tests.kit.working import at_work
from tests.worker.armed.test_armed_claims import Near


async def drain(app: App, **options: Any) -> Worker:
    worker = Worker(app, WorkerOptions(queues=("q",), burst=True, **options))
    async with asyncio.timeout(60):
        await worker.run()
    return worker


async def test_handlers_run_while_the_next_exchange_with_redis_is_under_way(
    app: App, valkey_url: str
) -> None:
    beside = []

    @app.task(queue="q")
    async def quick() -> None:
        beside.append(transport.under_way > 0)

    app.enqueue_many(quick.job() for _ in range(400))
    transport = Counted(valkey_url)
    worker = Worker(
        app, WorkerOptions(queues=("q",), concurrency=20, burst=True), transport=transport
    )
    async with asyncio.timeout(60):
        await worker.run()

    # The first batch shows how long handlers take; from the second one on, the next claim is on its way meanwhile.
    # Where two turns are answered in one round of the loop there is none to be on its way.
    assert sum(beside) >= 100


class Diary(AsyncPoolTransport):
    """A transport that appends to ``events`` each call of a script and each wait for a wake token."""

    events: list[str]

    async def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        self.events += [command[1].split("_")[1] for command in commands if command[0] == "FCALL"]
        return await super().exchange(commands, *how)

    async def block(self, command: Sequence[Any], seconds: float, hear: Hear = None) -> Any:
        self.events.append("wait")
        return await super().block(command, seconds, hear)


async def test_an_idle_worker_begins_a_job_before_any_other_work(app: App, valkey_url: str) -> None:
    """Checks that the job begins before the worker waits for the next token. The start of this wait takes time.

    This worker prepares no claim before the token arrives, as a worker with several queues.
    """
    events: list[str] = []

    @app.task(queue="q")
    async def quick() -> None:
        events.append("begin")

    diary = Diary(valkey_url)
    diary.events = events
    worker = Worker(app, WorkerOptions(queues=("q",), concurrency=10), transport=diary)
    worker._groups.all[0].watcher.arm = None

    async with at_work(worker):
        for n in range(1, 4):
            await wait_until_async(lambda: "wait" in events, "it waits for a token")
            events.clear()
            await quick.enqueue_async()
            await wait_until_async(lambda n=n: worker.stats.completed == n, "it is done")  # type: ignore[misc]
            assert events[:2] == ["claim", "begin"]
            assert set(events[2:]) <= {"wait", "complete", "turn"}
    await app.aclose()


async def test_an_idle_worker_reports_at_once_a_job_that_it_gives_back_to_the_queue(
    app: App, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks that the worker sends the rollback at once. Its next turn may be seconds away."""
    monkeypatch.setattr(wakeups, "LOOK_S_MAX", 3600.0)
    app.queue("q", lease=3600.0)

    @app.task(queue="q")
    async def known() -> None: ...

    armed = Near(valkey_url)
    worker = Worker(app, WorkerOptions(queues=("q",), concurrency=10), transport=armed)
    known.enqueue()

    async with at_work(worker):
        await wait_until_async(lambda: worker.stats.completed == 1, "the first is done")
        await wait_until_async(lambda: armed.waiting, "the worker is idle")
        handle = app.enqueue("q", "unknown")

        await wait_until_async(lambda: handle.state() == "scheduled", "it is given back")


async def test_long_jobs_do_not_delay_other_jobs_of_their_worker(app: App) -> None:
    release = asyncio.Event()
    ran = 0

    @app.task(queue="q")
    async def long() -> None:
        await release.wait()

    @app.task(queue="q")
    async def short() -> None:
        nonlocal ran
        ran += 1

    app.enqueue_many(long.job() for _ in range(15))
    app.enqueue_many(short.job() for _ in range(200))
    worker = Worker(app, WorkerOptions(queues=("q",), concurrency=16))

    async with at_work(worker):
        await wait_until_async(lambda: worker.stats.completed == 200, "the short ones are done")
        assert ran == 200
        release.set()
        await wait_until_async(lambda: worker.stats.completed == 215, "the long ones, too")


@pytest.mark.parametrize("concurrency", [1, 15, 16, 33])
async def test_a_worker_never_runs_more_handlers_than_its_concurrency_allows(
    app: App, concurrency: int
) -> None:
    running, most = 0, 0
    rng = random.Random(7)

    @app.task(queue="q")
    async def busy() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(0)
        running -= 1

    app.enqueue_many(busy.job() for _ in range(400))
    leased = 0
    worker = Worker(app, WorkerOptions(queues=("q",), concurrency=concurrency))
    async with at_work(worker):
        while worker.stats.completed < 400:
            # A server that does not know `complete` yet carries out the claim behind the first one before it.
            if worker.stats.completed:
                leased = max(leased, app.client.run(app.client.calls.reads.counts("q")).running)
            await asyncio.sleep(0)

    assert leased <= concurrency
    assert most <= concurrency
    assert concurrency > 1 or most == 1


@pytest.mark.parametrize("kind", ["async", "threads"])
async def test_under_load_each_exchange_with_redis_settles_at_least_40_jobs_on_average(
    app: App, kind: str
) -> None:
    """Checks a budget: a round trip settles 40 jobs or more on average, and also claims new jobs."""

    async def on_the_loop() -> None:
        pass

    def in_a_thread() -> None:
        pass

    task: Any = app.task(queue="q")(on_the_loop if kind == "async" else in_a_thread)
    app.enqueue_many(task.job() for _ in range(4_000))

    worker = await drain(app, concurrency=100)

    assert worker.stats.completed == 4_000
    assert worker.stats.turns <= 4_000 / 40


async def test_jobs_that_end_shortly_after_one_another_are_settled_in_one_exchange_with_redis(
    app: App,
) -> None:
    rng = random.Random(7)

    @app.task(queue="q")
    async def waits() -> None:
        await asyncio.sleep(rng.uniform(0.001, 0.01))

    app.enqueue_many(waits.job() for _ in range(2_000))

    worker = await drain(app, concurrency=100)

    assert worker.stats.completed == 2_000
    assert worker.stats.turns <= 2_000 / 2


async def test_a_worker_whose_handlers_block_the_event_loop_claims_no_jobs_in_advance(
    app: App, valkey_url: str
) -> None:
    """Checks that no claim is under way while a handler blocks the event loop. The worker could not extend the new
    leases."""
    under_way = []

    @app.task(queue="q")
    async def blocks() -> None:
        time.sleep(0.01)  # noqa: ASYNC251 - that is the point
        under_way.append(transport.under_way)

    app.enqueue_many(blocks.job() for _ in range(60))
    transport = Counted(valkey_url)
    worker = Worker(
        app, WorkerOptions(queues=("q",), concurrency=20, burst=True), transport=transport
    )
    async with asyncio.timeout(60):
        await worker.run()

    assert under_way == [0] * 60


async def test_redis_receives_the_next_call_of_a_worker_before_it_answers_the_previous_call(
    app: App, valkey_url: str
) -> None:
    """Checks that two turns are under way at once. Redis then has work while the worker reads an answer."""

    @app.task(queue="q")
    async def quick() -> None: ...

    app.enqueue_many(quick.job() for _ in range(4_000))
    transport = Counted(valkey_url)
    worker = Worker(
        app, WorkerOptions(queues=("q",), concurrency=100, burst=True), transport=transport
    )

    async with asyncio.timeout(60):
        await worker.run()

    assert transport.most == 2


@pytest.mark.slow
async def test_no_job_loses_its_claim_if_connections_are_cut_during_two_concurrent_exchanges(
    app: App, valkey_url: str
) -> None:
    """Checks that the worker sends both turns again, and that Redis carries out each turn once, in either order."""
    ran: Counter[int] = Counter()

    @app.task(queue="q")
    async def counts(n: int) -> None:
        ran[n] += 1

    app.enqueue_many(counts.job(n=n) for n in range(6_000))
    transport = Counted(valkey_url)
    worker = Worker(app, WorkerOptions(queues=("q",), concurrency=100), transport=transport)
    cuts = 0
    async with (
        at_work(worker),
        redis.asyncio.from_url(valkey_url) as nemesis,
        asyncio.timeout(60),
    ):
        while worker.stats.completed < 6_000:
            if transport.under_way == 2:
                await nemesis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                if cuts == 0:
                    await nemesis.execute_command("FUNCTION", "FLUSH")
                cuts += 1
                done = worker.stats.completed
                # The last jobs may have completed during the cut: then no further one will.
                while worker.stats.completed == done < 6_000:  # noqa: ASYNC110 - a pause would miss the next
                    await asyncio.sleep(0)
            await asyncio.sleep(0)

    assert cuts >= 2
    assert set(ran) == set(range(6_000))
    assert max(ran.values()) == 1
    assert (worker.stats.refused, worker.stats.rolled_back) == (0, 0)
    assert app.client.run(app.client.calls.reads.snapshot("q"))["jobs"] == {}


async def test_jobs_that_arrive_while_handlers_take_their_first_steps_are_begun(app: App) -> None:
    """Checks an answer with jobs that arrives while handlers begin. The jobs begin at once, well before their leases
    expire."""
    worker = Worker(app, WorkerOptions(queues=("q",)))
    begun: list[str] = []
    claims = [Claim("q", name, "1-1", 1, 0, 0, "{}") for name in ("first", "second")]

    def prepare(claim: Claim) -> None:
        begun.append(claim.id)
        if claim.id == "first":
            asyncio.get_running_loop().call_soon(worker._handlers.arrive, claims[1], now)

    worker._handlers._prepare = prepare  # type: ignore[method-assign,assignment]
    now = time.monotonic()
    worker._handlers.arrive(claims[0], now)

    async with asyncio.timeout(5):
        await worker._handlers.stepped.wait()
    assert begun == ["first", "second"]
    await worker._client.close()


async def test_a_worker_builds_its_scripts_before_its_first_job(app: App) -> None:
    """Checks the order, since this work blocks the event loop for tens of milliseconds."""

    @app.task(queue="q")
    async def fails() -> None:
        made.append(function.cache_info().misses)
        raise GiveUp("no use")

    made: list[int] = []
    fails.enqueue()
    function.cache_clear()

    await drain(app, concurrency=1)

    assert made == [function.cache_info().misses]
