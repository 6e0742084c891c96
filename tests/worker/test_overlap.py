"""A worker's turns overlap with its handlers: batches stay large, and nothing begins late or too often."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

from rq_core import GiveUp, functions, watcher
from rq_core.app import App
from rq_core.job import Claim
from rq_core.wire import AsyncPoolWire, Meanwhile
from rq_core.worker import Worker, WorkerOptions
from tests.support.wait import wait_until_async


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    app = App(valkey_url)
    yield app
    app.close()


@contextlib.asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[None]:
    """The worker works during the block, then stops and must end."""
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        async with asyncio.timeout(20):
            await task


async def drain(app: App, **options: Any) -> Worker:
    worker = Worker(app, WorkerOptions(queues=("q",), burst=True, **options))
    async with asyncio.timeout(60):
        await worker.run()
    return worker


class Gate(AsyncPoolWire):
    """Holds back every claim for as long as ``shut`` says so."""

    held = 0
    shut: Callable[[], bool]

    async def exchange(
        self, commands: Sequence[Sequence[Any]], meanwhile: Meanwhile = None
    ) -> list[Any]:
        if self.shut() and any("claim" in str(command[1]) for command in commands):
            self.held += 1
            await wait_until_async(lambda: not self.shut(), "the gate is open")
        return await super().exchange(commands, meanwhile)


async def test_handlers_run_while_the_next_turn_is_under_way(app: App, valkey_url: str) -> None:
    ran = 0

    @app.task(queue="q")
    async def count() -> None:
        nonlocal ran
        ran += 1

    app.enqueue_many(count.job() for _ in range(40))
    worker = Worker(app, WorkerOptions(queues=("q",), concurrency=20))
    gate = Gate(valkey_url)
    worker._client._wire = gate
    gate.shut = lambda: ran < worker.stats.claimed

    async with working(worker):
        await wait_until_async(lambda: worker.stats.completed == 40, "all are done")

    # The first batch shows how long handlers take; from the second one on, the next claim is on its way meanwhile.
    assert gate.held >= 2


class Diary(AsyncPoolWire):
    """Notes the script calls and the waits, in ``events``."""

    events: list[str]

    async def exchange(
        self, commands: Sequence[Sequence[Any]], meanwhile: Meanwhile = None
    ) -> list[Any]:
        self.events += [command[1].split("_")[1] for command in commands if command[0] == "FCALL"]
        return await super().exchange(commands, meanwhile)

    async def block(self, command: Sequence[Any], seconds: float) -> Any:
        self.events.append("wait")
        return await super().block(command, seconds)


async def test_an_idle_worker_begins_a_job_before_it_does_anything_else(
    app: App, valkey_url: str
) -> None:
    """Its next wait for a token left first, and took as long as a job's whole way through the worker."""
    events: list[str] = []

    @app.task(queue="q")
    async def quick() -> None:
        events.append("begin")

    worker = Worker(app, WorkerOptions(queues=("q",), concurrency=10))
    diary = Diary(valkey_url)
    diary.events = events
    worker._client._wire = diary

    async with working(worker):
        for n in range(1, 4):
            await wait_until_async(lambda: "wait" in events, "it waits for a token")
            events.clear()
            await quick.enqueue_async()
            await wait_until_async(lambda n=n: worker.stats.completed == n, "it is done")  # type: ignore[misc]
            assert events[:2] == ["claim", "begin"]
            assert set(events[2:]) <= {"wait", "complete"}
    await app.aclose()


async def test_what_an_idle_worker_gives_back_is_reported_at_once(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it could not be begun was forgotten, and told with whatever the worker did next: after seconds of idling."""
    monkeypatch.setattr(watcher, "LOOK_MAX", 3600.0)
    app.queue("q", lease=3600.0)

    @app.task(queue="q")
    async def known() -> None: ...

    worker = Worker(app, WorkerOptions(queues=("q",), concurrency=10))
    known.enqueue()

    async with working(worker):
        await wait_until_async(lambda: worker.stats.completed == 1, "the first is done")
        await wait_until_async(lambda: not worker._burst.active(), "the worker is idle")
        handle = app.enqueue("q", "unknown")

        await wait_until_async(lambda: handle.state() == "scheduled", "it is given back")


async def test_jobs_that_run_long_hold_up_no_others(app: App) -> None:
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

    async with working(worker):
        await wait_until_async(lambda: worker.stats.completed == 200, "the short ones are done")
        assert ran == 200
        release.set()
        await wait_until_async(lambda: worker.stats.completed == 215, "the long ones, too")


@pytest.mark.parametrize("concurrency", [1, 15, 16, 33])
async def test_never_more_handlers_than_places(app: App, concurrency: int) -> None:
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
    async with working(worker):
        while worker.stats.completed < 400:
            # A server that does not know `complete` yet carries out the claim behind the first one before it.
            if worker.stats.completed:
                leased = max(leased, app.client.counts("q").running)
            await asyncio.sleep(0)

    assert leased <= concurrency
    assert most <= concurrency
    assert concurrency > 1 or most == 1


@pytest.mark.parametrize("kind", ["async", "threads"])
async def test_batches_are_half_of_the_places_under_load(app: App, kind: str) -> None:
    """The budget: a turn, one round trip of a settlement and a claim, for 40 jobs at least."""

    async def on_the_loop() -> None:
        pass

    def in_a_thread() -> None:
        pass

    task: Any = app.task(queue="q")(on_the_loop if kind == "async" else in_a_thread)
    app.enqueue_many(task.job() for _ in range(4_000))

    worker = await drain(app, concurrency=100)

    assert worker.stats.completed == 4_000
    assert worker.stats.turns <= 4_000 / 40


async def test_jobs_that_end_one_by_one_share_turns(app: App) -> None:
    rng = random.Random(7)

    @app.task(queue="q")
    async def waits() -> None:
        await asyncio.sleep(rng.uniform(0.001, 0.01))

    app.enqueue_many(waits.job() for _ in range(2_000))

    worker = await drain(app, concurrency=100)

    assert worker.stats.completed == 2_000
    assert worker.stats.turns <= 2_000 / 2


async def test_where_handlers_block_the_loop_nothing_is_claimed_that_would_wait_for_them(
    app: App,
) -> None:
    """Claimed jobs that are not begun have nobody who keeps their leases."""
    under_way = []

    @app.task(queue="q")
    async def blocks() -> None:
        time.sleep(0.01)  # noqa: ASYNC251 - that is the point
        under_way.append(worker._lines.queues["q"].asked)

    app.enqueue_many(blocks.job() for _ in range(60))
    worker = Worker(app, WorkerOptions(queues=("q",), concurrency=20, burst=True))
    async with asyncio.timeout(60):
        await worker.run()

    assert under_way == [False] * 60


async def test_jobs_that_arrive_while_others_take_their_first_steps_are_begun(app: App) -> None:
    """They were forgotten until their leases ended, if Redis answered just then."""
    worker = Worker(app, WorkerOptions(queues=("q",)))
    begun: list[str] = []
    claims = [Claim("q", name, "1-1", 1, 0, 0, "{}") for name in ("first", "second")]

    def prepare(claim: Claim) -> None:
        begun.append(claim.id)
        if claim.id == "first":
            asyncio.get_running_loop().call_soon(worker._handlers.arrive, claims[1])

    worker._handlers._prepare = prepare  # type: ignore[method-assign,assignment]
    worker._handlers.arrive(claims[0])

    async with asyncio.timeout(5):
        await worker._handlers.stepped.wait()
    assert begun == ["first", "second"]
    await worker._client.close()


async def test_a_worker_has_its_scripts_ready_before_its_first_job(app: App) -> None:
    """To put one together takes tens of milliseconds, in which the loop would stand still."""

    @app.task(queue="q")
    async def fails() -> None:
        made.append(functions.function.cache_info().misses)
        raise GiveUp("no use")

    made: list[int] = []
    fails.enqueue()
    functions.function.cache_clear()

    await drain(app, concurrency=1)

    assert made == [functions.function.cache_info().misses]
