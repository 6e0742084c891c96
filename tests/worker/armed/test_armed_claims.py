"""Armed claims: an idle worker prepares its claim before it waits for a token.

Far from Redis, it writes the claim behind the wait, so the token brings the jobs with it, one round trip earlier. Near
Redis, it writes the claim when the token arrives.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest

from rq_core import App, RetryPolicy
from rq_core.connections.transport import AsyncPoolTransport, Hear
from rq_core.model.job import Claim
from rq_core.model.keys import queue_keys
from rq_core.protocol.engine.plan import Lost
from rq_core.worker import Worker, WorkerOptions, turns, wakeups
from rq_core.worker.claim_counters import FlowTable
from scripts.measure.benchmarks.delaying import delayed
from tests.kit.wait import wait_until_async
from tests.kit.working import at_work
from tests.worker.conftest import log_of


class Far(AsyncPoolTransport):
    """A transport that says that its server is far away. ``diary`` has the calls of scripts and the waits, in order.

    ``holding`` keeps the answers to armed claims from the worker until it stops.
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
        self.written: list[bool] = []
        """For each armed claim, whether it was written with its wait."""

    async def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        self.diary += [command[1].split("_")[1] for command in commands if command[0] == "FCALL"]
        replies = await super().exchange(commands, *how)
        self.round_trip = self.says
        return replies

    async def block(self, command: Sequence[Any], seconds: float, hear: Hear = None) -> Any:
        self.diary.append("wait")
        return await super().block(command, seconds, hear)

    async def block_before(
        self,
        command: Sequence[Any],
        call: Sequence[Any],
        seconds: float,
        until: asyncio.Future[Any],
        on_token: Callable[[], None] | None,
    ) -> list[Any]:
        self.diary.append("armed")
        self.armed += 1
        self.written.append(on_token is None)
        self.waiting += 1
        try:
            replies = await super().block_before(command, call, seconds, until, on_token)
        finally:
            self.waiting -= 1
        if self.holding:
            await asyncio.wait({until})
            return [None, Lost("the wait was ended")]
        return replies


class Near(Far):
    """A transport that says that its server is near."""

    says = 0.0


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


both = pytest.mark.parametrize("kind", [Far, Near])


@both
@pytest.mark.usefixtures("patient")
async def test_an_idle_worker_sends_no_command_between_a_wake_token_and_the_handler_of_the_job(
    app: App, valkey_url: str, kind: type[Far]
) -> None:
    diary: list[str] = []
    transport = kind(valkey_url, diary)

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


IN_A_ROW = 4


@pytest.mark.slow
@pytest.mark.parametrize("far", [True, False], ids=["far", "near"])
async def test_a_worker_sends_its_claim_together_with_its_wait_only_if_the_round_trip_is_long(
    app: App, valkey_url: str, monkeypatch: pytest.MonkeyPatch, far: bool
) -> None:
    """Checks the estimate, with a proxy that delays all data.

    On a busy machine, round trips to a near server take longer than the limit in use. So the test raises the limit to
    10 ms, and waits for several waits of one kind.
    """
    monkeypatch.setattr(wakeups, "FAR_S", 0.010)
    monkeypatch.setattr(wakeups, "STILL_FAR_S", 0.009)
    monkeypatch.setattr("rq_core.connections.transport.ROUND_TRIP_GROWTH", 1.2)
    waits: list[str] = []

    class Counting(AsyncPoolTransport):
        async def block_before(self, *how: Any) -> list[Any]:
            *_, on_token = how
            waits.append("at the token" if on_token else "behind")
            return await super().block_before(*how)

    @app.task(queue="q")
    async def quick() -> None: ...

    async def run(url: str) -> None:
        worker = made(app, Counting(url))
        kind = "behind" if far else "at the token"
        async with at_work(worker):
            for n in range(1, 501):
                await quick.enqueue_async()
                await wait_until_async(lambda n=n: worker.stats.completed == n, "it is done")  # type: ignore[misc]
                if n > 20 and waits[-IN_A_ROW:] == [kind] * IN_A_ROW:
                    return
        raise AssertionError(f"its last waits were {waits[-IN_A_ROW:]}")

    if far:
        with delayed(valkey_url, 0.020) as url:
            await run(url)
    else:
        await run(valkey_url)
    await app.aclose()


async def test_an_idle_worker_without_jobs_learns_that_its_round_trip_is_long(
    app: App, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "LOOK_S_MAX", 0.2)
    monkeypatch.setattr("rq_core.connections.transport.ROUND_TRIP_GROWTH", 2.0)
    app.queue("q")
    behind: list[bool] = []

    class Counting(AsyncPoolTransport):
        async def block_before(self, *how: Any) -> list[Any]:
            behind.append(how[-1] is None)
            return await super().block_before(*how)

    with delayed(valkey_url, 0.001) as url:
        async with at_work(made(app, Counting(url))):
            await wait_until_async(lambda: True in behind, "it writes a claim behind a wait")
    await app.aclose()


@both
async def test_a_worker_prepares_no_claim_while_a_job_is_due_soon(
    app: App, valkey_url: str, kind: type[Far]
) -> None:
    """Checks that the worker's own timer lets it claim at the due time. An idle server may end a wait 0.1 s late."""
    transport = kind(valkey_url)

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
async def test_a_worker_that_stops_does_not_send_the_claim_that_it_has_prepared(
    app: App, valkey_url: str
) -> None:
    transport = Near(valkey_url)

    @app.task(queue="q")
    async def quick() -> None: ...

    worker = made(app, transport)
    async with at_work(worker):
        # The first wait takes the job's token. A token that is left would end the second wait while the worker stops.
        await wait_until_async(lambda: transport.waiting, "its first claim is prepared")
        await quick.enqueue_async()
        await wait_until_async(lambda: worker.stats.completed == 1, "it is done")
        await wait_until_async(
            lambda: transport.armed == 2 and transport.waiting, "its second claim is prepared"
        )
        transport.diary.clear()

    assert "claim" not in transport.diary
    handle = await quick.enqueue_async()
    assert handle.state() == "ready"
    await app.aclose()


@pytest.mark.usefixtures("patient")
async def test_the_leases_of_a_prepared_claim_begin_when_the_wake_token_arrives(
    app: App, valkey_url: str
) -> None:
    """Otherwise jobs would seem to be held for as long as the worker waited, and their leases be extended too early."""
    transport = Near(valkey_url)

    @app.task(queue="q")
    async def quick() -> None: ...

    worker, sent = made(app, transport), []
    arrive = worker._handlers.arrive

    def arriving(claim: Claim, at: float) -> None:
        sent.append(at)
        arrive(claim, at)

    worker._handlers.arrive = arriving  # type: ignore[method-assign]
    async with at_work(worker):
        await wait_until_async(lambda: transport.waiting, "its claim is prepared")
        enqueued = time.monotonic()
        await quick.enqueue_async()
        await wait_until_async(lambda: worker.stats.completed == 1, "it is done")

    assert sent[0] >= enqueued
    await app.aclose()


@pytest.mark.usefixtures("patient")
async def test_a_prepared_claim_counts_as_one_round_trip_in_the_metrics(
    app: App, valkey_url: str
) -> None:
    """Checks the numbers behind `rqc_worker_turns_total`."""
    transport, flow = Near(valkey_url), FlowTable()

    @app.task(queue="q")
    async def quick() -> None: ...

    worker = Worker(app, WorkerOptions(queues=("q",)), transport=transport, flow=flow)
    async with at_work(worker):
        await wait_until_async(lambda: transport.waiting, "its claim is prepared")
        before, enqueued = flow.vitals(), time.monotonic()
        await quick.enqueue_async()
        await wait_until_async(lambda: worker.stats.completed == 1, "it is done")
        after, elapsed = flow.vitals(), time.monotonic() - enqueued
    await app.aclose()

    assert after.turns == before.turns + 2  # The claim, and the success.
    assert after.turns_s - before.turns_s < elapsed


@pytest.mark.usefixtures("patient")
async def test_a_worker_that_stops_while_it_waits_with_a_prepared_claim_takes_no_job(
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


@both
@pytest.mark.usefixtures("patient")
async def test_a_worker_that_stops_gives_back_the_jobs_of_a_claim_whose_answer_is_still_on_its_way(
    app: App, valkey_url: str, kind: type[Far]
) -> None:
    """Checks a worker that is stopped after Redis has carried out its claim, and before the answer is here."""
    transport = kind(valkey_url)
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


@both
@pytest.mark.usefixtures("patient")
async def test_a_failed_job_is_tried_again_while_its_worker_waits_with_a_prepared_claim(
    app: App, valkey_url: str, kind: type[Far]
) -> None:
    transport = kind(valkey_url)
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


@both
@pytest.mark.usefixtures("patient")
async def test_a_worker_claims_no_more_than_its_free_places(
    app: App, valkey_url: str, kind: type[Far]
) -> None:
    """Checks armed claims while jobs run. A worker without a free place arms none."""
    transport = kind(valkey_url)
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


@pytest.mark.usefixtures("patient")
async def test_an_idle_worker_leaves_half_of_many_new_jobs_to_other_workers(
    app: App, valkey_url: str
) -> None:
    """Checks that the prepared claim asks for no more than a claim of a turn does."""
    transport = Near(valkey_url)

    @app.task(queue="q")
    async def quick() -> None: ...

    worker = made(app, transport, concurrency=100)
    async with at_work(worker):
        await wait_until_async(lambda: transport.waiting, "its claim is prepared")
        app.enqueue_many(quick.job() for _ in range(100))
        await wait_until_async(lambda: worker.stats.completed == 100, "all are done")
    claimed = [len(entry.jobs) for entry in log_of(app.client, "q") if entry.event == "claimed"]
    await app.aclose()

    assert claimed[0] == 50


@both
async def test_a_worker_asks_again_for_the_lost_answer_to_a_prepared_claim_and_the_job_runs_once(
    app: App, valkey_url: str, kind: type[Far]
) -> None:
    runs = []

    class Breaking(kind):  # type: ignore[misc,valid-type]
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
    "change", [_full, _holding, _over, _due_soon, _used_up, _blocking, _by_chance, None]
)
async def test_a_worker_prepares_no_claim_that_it_could_not_use(
    app: App, valkey_url: str, monkeypatch: pytest.MonkeyPatch, change: Change | None
) -> None:
    worker = made(app, Far(valkey_url), max_jobs=50)
    worker._turns.over = asyncio.get_running_loop().create_future()
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


@both
async def test_a_worker_without_the_right_to_wait_prepares_only_one_claim_and_still_runs_its_jobs(
    app: App, valkey_url: str, kind: type[Far]
) -> None:
    """Checks a user without BLPOP. Redis answers its armed claim at once, so further ones would follow in a loop."""
    ask = app.client.calls.delivery.ask
    user = ["ACL", "SETUSER", "narrow", "on", ">secret", "~*", "&*", "+@all", "-blpop"]
    app.client.run(ask([user]))
    parts = urlsplit(valkey_url)
    transport = kind(parts._replace(netloc=f"narrow:secret@{parts.netloc}").geturl())

    @app.task(queue="q")
    async def quick() -> None: ...

    worker = made(app, transport)
    waits: list[str] = []
    try:
        async with at_work(worker):
            await quick.enqueue_async()
            await wait_until_async(lambda: worker.stats.completed == 1, "it is done")
            transport.diary.clear()
            await wait_until_async(lambda: len(transport.diary) >= 8, "it goes on")
            waits += [each for each in transport.diary if each in ("armed", "wait")]
            await quick.enqueue_async()
            await wait_until_async(lambda: worker.stats.completed == 2, "it is done, too")
    finally:
        app.client.run(ask([["ACL", "DELUSER", "narrow"]]))
    await app.aclose()

    assert transport.armed == 1
    assert waits.count("wait") >= 3


@pytest.mark.parametrize(("before", "far"), [(0.0001, False), (0.001, True)])
async def test_a_worker_starts_or_stops_preparing_claims_only_if_the_round_trip_changes_clearly(
    app: App, valkey_url: str, before: float, far: bool
) -> None:
    worker = made(app, transport := Far(valkey_url))
    worker._turns.over = asyncio.get_running_loop().create_future()
    for seconds in (before, 0.00025):
        pool(worker).round_trip = seconds
        armed = worker._groups.all[0].watcher._armed(0.01)
        assert armed is not None
        await _end(armed)
    await worker._client.close()
    worker._lease_client.close()

    assert transport.written == [far, far]


async def _end(armed: Awaitable[None]) -> None:
    async with asyncio.timeout(30):
        await armed


@pytest.mark.parametrize("options", [{"queues": ("q", "r")}, {"burst": True}], ids=str)
async def test_a_worker_of_several_queues_or_in_burst_mode_prepares_no_claim(
    app: App, options: dict[str, Any]
) -> None:
    worker = Worker(app, WorkerOptions(**{"queues": ("q",), **options}))

    assert all(group.watcher.arm is None for group in worker._groups.all)
    await worker._client.close()
    worker._lease_client.close()
