"""Armed claims: far from Redis, an idle worker writes its claim behind its wait for a token. The token brings the jobs
with it, one round trip earlier."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from rq_core import App, RetryPolicy
from rq_core.connections.transport import AsyncPoolTransport, Hear
from rq_core.model.keys import queue_keys
from rq_core.protocol.engine.plan import Lost
from rq_core.worker import Worker, WorkerOptions, turns, wakeups
from scripts.measure.benchmarks.delaying import delayed
from tests.kit.wait import wait_until_async
from tests.kit.working import at_work


class Far(AsyncPoolTransport):
    """A transport that says that its server is far away. ``diary`` has the calls of scripts and the waits, in order.

    ``holding`` keeps the answers to armed claims from the worker.
    """

    holding = False
    says = 1.0
    """The round trip (seconds)."""

    def __init__(self, url: str, diary: list[str] | None = None) -> None:
        super().__init__(url)
        self.round_trip = self.says
        self.diary = diary if diary is not None else []
        self.armed = 0
        """Number of armed claims so far."""
        self.waiting = 0
        """Number of armed claims that wait for a token now."""
        self.limits: list[int] = []
        """The places of each armed claim, of which the server may fill all."""

    async def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        self.diary += [command[1].split("_")[1] for command in commands if command[0] == "FCALL"]
        replies = await super().exchange(commands, *how)
        self.round_trip = self.says
        return replies

    async def block(self, command: Sequence[Any], seconds: float, hear: Hear = None) -> Any:
        self.diary.append("wait")
        return await super().block(command, seconds, hear)

    async def block_before(
        self, command: Sequence[Any], call: Sequence[Any], seconds: float
    ) -> list[Any]:
        self.diary.append("armed")
        self.armed += 1
        self.waiting += 1
        try:
            replies = await super().block_before(command, call, seconds)
        finally:
            self.waiting -= 1
        if self.holding:
            await asyncio.Event().wait()
        return replies


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arm each claim that may be armed."""
    monkeypatch.setattr(wakeups, "PLAIN_SHARE", 0.0)


@pytest.fixture
def patient(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waits end only at tokens and at due times."""
    monkeypatch.setattr(wakeups, "LOOK_S_MAX", 3600.0)
    app.queue("q", lease=3600.0)


def made(app: App, transport: AsyncPoolTransport, **options: Any) -> Worker:
    how = {"concurrency": 10, "grace": 20.0, **options}
    return Worker(app, WorkerOptions(queues=("q",), **how), transport=transport)


@pytest.mark.usefixtures("patient")
async def test_a_job_begins_without_an_exchange_between_its_token_and_its_handler(
    app: App, valkey_url: str
) -> None:
    diary: list[str] = []
    transport = Far(valkey_url, diary)

    @app.task(queue="q")
    async def quick() -> None:
        diary.append("begin")

    worker = made(app, transport)
    async with at_work(worker):
        for n in range(1, 4):
            await wait_until_async(lambda: transport.waiting, "its claim is armed")
            diary.clear()
            await quick.enqueue_async()
            await wait_until_async(lambda n=n: worker.stats.completed == n, "it is done")  # type: ignore[misc]
            assert diary[0] == "begin"
            assert set(diary[1:]) <= {"armed", "complete"}
    await app.aclose()


@pytest.mark.parametrize("far", [True, False], ids=["far", "near"])
async def test_a_worker_arms_its_claims_where_the_round_trip_is_long(
    app: App, valkey_url: str, far: bool
) -> None:
    """Checks the estimate, with a proxy that delays all data."""
    waits: list[str] = []

    class Counting(AsyncPoolTransport):
        async def block_before(self, *how: Any) -> list[Any]:
            waits.append("armed")
            return await super().block_before(*how)

        async def block(self, *how: Any) -> Any:
            waits.append("plain")
            return await super().block(*how)

    @app.task(queue="q")
    async def quick() -> None: ...

    async def run(url: str) -> None:
        worker = made(app, Counting(url))
        async with at_work(worker):
            for n in range(1, 26):
                await quick.enqueue_async()
                await wait_until_async(lambda n=n: worker.stats.completed == n, "it is done")  # type: ignore[misc]

    if far:
        with delayed(valkey_url, 0.001) as url:
            await run(url)
    else:
        await run(valkey_url)
    await app.aclose()

    assert ("armed" in waits) is far
    assert waits[22:].count("plain") == (0 if far else len(waits[22:]))


async def test_a_worker_waits_without_a_claim_until_a_job_that_is_due_soon(
    app: App, valkey_url: str
) -> None:
    """Checks that the worker's own timer lets it claim at the due time. An idle server may end a wait 0.1 s late."""
    transport = Far(valkey_url)

    @app.task(queue="q")
    async def quick() -> None: ...

    worker = made(app, transport, concurrency=1)
    async with at_work(worker):
        await wait_until_async(lambda: transport.waiting, "its claim is armed")
        transport.diary.clear()
        await quick.with_options(delay=0.3).enqueue_async()
        await wait_until_async(lambda: worker.stats.completed == 1, "it is done")
        calls = [each for each in transport.diary if each != "complete"]
        await quick.enqueue_async()
        await wait_until_async(lambda: transport.waiting, "it arms again")
    await app.aclose()

    assert calls[:2] == ["wait", "claim"]


@pytest.mark.usefixtures("patient")
async def test_a_worker_that_stops_with_an_armed_claim_takes_no_job(
    app: App, valkey_url: str
) -> None:
    """Checks a job that is ready at the end. Another client has taken the token."""
    other, transport = AsyncPoolTransport(valkey_url), Far(valkey_url)

    @app.task(queue="q")
    async def quick() -> None: ...

    wake = queue_keys("q")("wake")
    async with at_work(worker := made(app, transport)):
        await wait_until_async(lambda: transport.waiting, "its claim is armed")
        # A client that waits for longer gets the token.
        waiting = asyncio.create_task(other.block(["BLPOP", wake, 30], 30))
        await wait_until_async(lambda: _waits(app) == 2, "both wait")
        await quick.enqueue_async()
        await wait_until_async(lambda: worker.stats.completed == 1, "the worker waits behind")
        await wait_until_async(lambda: transport.waiting, "its claim is armed again")
        handle = await quick.enqueue_async()
        await waiting
    await other.close()

    assert handle.state() == "ready"
    assert transport.diary[-1] == "claim"  # The same call again, with a limit of 0.
    assert worker.stats.claimed == 1
    await app.aclose()


def _waits(app: App) -> int:
    (text,) = app.client.run(app.client.calls.delivery.ask([["CLIENT", "LIST"]]))
    return sum("cmd=blpop" in line for line in text.splitlines())


@pytest.mark.usefixtures("patient")
async def test_a_worker_that_stops_gives_back_the_jobs_that_a_token_has_just_brought(
    app: App, valkey_url: str
) -> None:
    """Checks a worker that is stopped after Redis has carried out its claim, and before the answer is here."""
    transport = Far(valkey_url)
    transport.holding = True
    ran = []

    @app.task(queue="q")
    async def quick() -> None:
        ran.append(1)

    async with at_work(made(app, transport)):
        await wait_until_async(lambda: transport.waiting, "its claim is armed")
        handles = [await quick.enqueue_async() for _ in range(1)]
        await wait_until_async(lambda: handles[0].state() == "running", "it is claimed")

    assert [handle.state() for handle in handles] == ["ready"]
    assert ran == []
    await app.aclose()


@pytest.mark.usefixtures("patient")
async def test_a_failed_job_is_tried_again_while_a_claim_is_armed(
    app: App, valkey_url: str
) -> None:
    transport = Far(valkey_url)
    runs = []

    @app.task(queue="q", retry=RetryPolicy(max_attempts=3, backoff="fixed", base=0.01))
    async def fails_twice() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise ValueError("no")

    worker = made(app, transport)
    async with at_work(worker):
        await wait_until_async(lambda: transport.waiting, "its claim is armed")
        await fails_twice.enqueue_async()
        await wait_until_async(lambda: worker.stats.completed == 1, "it is done")
    await app.aclose()

    assert len(runs) == 3


@pytest.mark.usefixtures("patient")
async def test_a_worker_claims_no_more_than_its_free_places(app: App, valkey_url: str) -> None:
    """Checks armed claims while jobs run. A worker without a free place arms none."""
    transport = Far(valkey_url)
    release = asyncio.Event()
    most = running = 0

    @app.task(queue="q")
    async def gated() -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1

    worker = made(app, transport, concurrency=3)
    async with at_work(worker):
        await wait_until_async(lambda: transport.waiting, "its claim is armed")
        await gated.enqueue_async()
        await wait_until_async(lambda: running == 1 and transport.waiting, "armed beside a job")
        app.enqueue_many(gated.job() for _ in range(4))
        await wait_until_async(lambda: running == 3, "all places are in use")
        assert (worker._capacity.taken, transport.waiting) == (3, 0)
        release.set()
        await wait_until_async(lambda: worker.stats.completed == 5, "all are done")
    await app.aclose()

    assert most == 3
    assert worker.stats.rolled_back == 0


@pytest.mark.usefixtures("patient")
async def test_a_worker_claims_no_more_than_max_jobs_and_at_most_16_at_once(
    app: App, valkey_url: str
) -> None:
    """Checks that a turn claims the other jobs at once: no job ends before the last one has begun."""
    transport = Far(valkey_url)
    began = 0
    all_began = asyncio.Event()

    @app.task(queue="q")
    async def gated() -> None:
        nonlocal began
        began += 1
        if began == 20:
            all_began.set()
        await all_began.wait()

    worker = made(app, transport, concurrency=100, max_jobs=20)
    running = asyncio.create_task(worker.run())
    await wait_until_async(lambda: transport.waiting, "its claim is armed")
    reserved = worker._capacity.kept
    app.enqueue_many(gated.job() for _ in range(30))
    async with asyncio.timeout(30):
        await running
    await app.aclose()

    assert reserved == turns.ARMED_MAX
    assert (worker.stats.claimed, worker.stats.completed) == (20, 20)


async def test_a_lost_answer_is_asked_for_again_and_the_job_runs_once(
    app: App, valkey_url: str
) -> None:
    runs = []

    class Breaking(Far):
        losing = True

        async def block_before(self, *how: Any) -> list[Any]:
            replies = await super().block_before(*how)
            if self.losing and replies[0] is not None:
                self.losing = False
                return [Lost("dropped by the test")] * 2
            return replies

    @app.task(queue="q")
    async def quick() -> None:
        runs.append(1)

    worker = made(app, Breaking(valkey_url))
    async with at_work(worker):
        for n in range(1, 3):
            await quick.enqueue_async()
            await wait_until_async(lambda n=n: worker.stats.completed == n, "it is done")  # type: ignore[misc]
    await app.aclose()

    assert len(runs) == 2


def pool(worker: Worker) -> AsyncPoolTransport:
    found = worker._client.pool_of("q")
    assert found is not None
    return found


Change = Callable[[Worker, pytest.MonkeyPatch], None]


def _full(worker: Worker, _: pytest.MonkeyPatch) -> None:
    worker._capacity.taken = worker._capacity.most


def _holding(worker: Worker, _: pytest.MonkeyPatch) -> None:
    worker._handlers.held = object()  # type: ignore[assignment]


def _over(worker: Worker, _: pytest.MonkeyPatch) -> None:
    worker._lifetime.over.set()


def _near(worker: Worker, _: pytest.MonkeyPatch) -> None:
    pool(worker).round_trip = 0.0001


def _due_soon(worker: Worker, _: pytest.MonkeyPatch) -> None:
    worker._groups.queues["q"].due = time.monotonic() + 0.1


def _used_up(worker: Worker, _: pytest.MonkeyPatch) -> None:
    worker.stats.claimed = 50


def _blocking(worker: Worker, _: pytest.MonkeyPatch) -> None:
    worker._handlers.steps_took = 1.0
    worker._handlers.executor.running[("q", "a", "1-1")] = object()  # type: ignore[assignment]


def _by_chance(_: Worker, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wakeups, "PLAIN_SHARE", 1.0)


@pytest.mark.parametrize(
    "change", [_full, _holding, _over, _near, _due_soon, _used_up, _blocking, _by_chance, None]
)
async def test_a_worker_does_not_arm_a_claim_that_it_could_not_use(
    app: App, valkey_url: str, monkeypatch: pytest.MonkeyPatch, change: Change | None
) -> None:
    worker = made(app, Far(valkey_url), max_jobs=50)
    if change is not None:
        change(worker, monkeypatch)
    arm = worker._groups.all[0].watcher._armed

    armed = arm(0.01)

    assert (armed is None) is (change is not None)
    if armed is not None:
        assert worker._capacity.kept == worker.options.concurrency
        await _end(armed)
        assert worker._capacity.kept == 0
    await worker._client.close()
    worker._lease_client.close()


@pytest.mark.parametrize(("before", "arms"), [(0.0001, False), (0.001, True)])
async def test_between_near_and_far_a_worker_goes_on_as_before(
    app: App, valkey_url: str, before: float, arms: bool
) -> None:
    worker = made(app, Far(valkey_url))
    arm = worker._groups.all[0].watcher._armed
    for seconds in (before, 0.00025):
        pool(worker).round_trip = seconds
        armed = arm(0.01)
        assert (armed is not None) is arms
        if armed is not None:
            await _end(armed)
    await worker._client.close()
    worker._lease_client.close()


async def _end(armed: Awaitable[None]) -> None:
    async with asyncio.timeout(30):
        await armed


@pytest.mark.parametrize("options", [{"queues": ("q", "r")}, {"burst": True}], ids=str)
async def test_a_worker_of_several_queues_or_in_burst_mode_never_arms(
    app: App, options: dict[str, Any]
) -> None:
    worker = Worker(app, WorkerOptions(**{"queues": ("q",), **options}))

    assert all(group.watcher.arm is None for group in worker._groups.all)
    await worker._client.close()
    worker._lease_client.close()
