"""Workers and caps. A worker registers its caps, moves jobs into their lanes, and obeys a changed cap at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from rq_core import App, Cap, Rate
from rq_core.connections.transport import AsyncPoolTransport
from rq_core.worker import Worker
from tests.kit.snapshots import lines_of
from tests.kit.transports import is_claim
from tests.kit.wait import wait_until_async
from tests.kit.working import working
from tests.worker.conftest import event_types, events

RunApp = Callable[..., AbstractAsyncContextManager[Worker]]


class Crowd:
    """A task that counts its running jobs. The test decides when the jobs end."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.most = 0
        self.begun = 0
        self.gate = asyncio.Event()

    async def __call__(self, tenant: str = "a") -> None:
        self.begun += 1
        self.running.append(tenant)
        self.most = max(self.most, len(self.running))
        try:
            await self.gate.wait()
        finally:
            self.running.remove(tenant)


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


@pytest.fixture
def make_app(valkey_url: str) -> Iterator[Callable[[], App]]:
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(App(valkey_url))


@pytest.fixture
def run() -> RunApp:
    """Run a worker for the queue ``mail`` during the block: ``async with run(app) as worker``."""

    return functools.partial(working, queues=("mail",), grace=5.0)


async def until(condition: Callable[[], bool], what: str) -> None:
    await wait_until_async(condition, what)


async def test_a_worker_registers_its_caps_and_respects_them(
    make_app: Callable[[], App], run: RunApp, crowd: Crowd
) -> None:
    app, other = make_app(), make_app()
    app.task(queue="mail", name="crowd", caps=[Cap(3), Cap(1, per="tenant")])(crowd.__call__)
    app.task(queue="elsewhere", name="not-here", caps=[Cap(1)])(crowd.__call__)
    async with run(app):
        await until(
            lambda: other.client.run(other.client.calls.caps.policy("mail", "crowd")) is not None,
            "the policy is registered",
        )
        assert {
            n: str(e.limit) for n, e in app.client.run(app.client.calls.caps.stored("mail")).items()
        } == {
            "task=crowd": "3",
            "crowd.tenant": "1",
        }
        assert app.client.run(app.client.calls.reads.snapshot("elsewhere"))["caps"] == {}
        for tenant in "aabbccdd":
            other.enqueue("mail", "crowd", {"tenant": tenant})
        await until(lambda: len(crowd.running) == 3, "three run")
        assert sorted(crowd.running) == ["a", "b", "c"]
        crowd.gate.set()
        await until(lambda: crowd.begun == 8, "all have run")
    assert crowd.most == 3


async def test_a_worker_moves_jobs_that_were_enqueued_without_scopes_into_their_lanes(
    make_app: Callable[[], App], run: RunApp, crowd: Crowd
) -> None:
    """Checks a producer without the task's code. It enqueued jobs before a worker registered the caps."""
    app, other = make_app(), make_app()
    handles = [
        other.enqueue("mail", "crowd", {"tenant": tenant}, priority=priority)  # type: ignore[arg-type]
        for tenant, priority in (("a", "normal"), ("a", "high"), ("a", "normal"), ("b", "low"))
    ]
    app.task(queue="mail", name="crowd", caps=[Cap(1, per="tenant")])(crowd.__call__)

    async with run(app):
        await until(lambda: sorted(crowd.running) == ["a", "b"], "one of each runs")
        await until(lambda: all("lane=" in line for line in lines(app)), "all are in their lanes")
        crowd.gate.set()
        await until(lambda: crowd.begun == 4, "all have run")
        await until(lambda: not lines(app), "all are settled")
    assert crowd.most == 2
    lanes = []
    for handle in handles:
        found = [e for e in events(app.client, handle.id, "mail") if e[0].event == "rolled_back"]
        ((_, fields),) = found
        assert fields["reason"] == "lane_changed"
        lanes.append(fields["lane"])
    # Each keeps its priority.
    assert lanes == [
        "2+crowd.tenant=a", "1+crowd.tenant=a", "2+crowd.tenant=a", "3+crowd.tenant=b"
    ]  # fmt: skip


def lines(app: App) -> list[str]:
    return list(lines_of(app.client.run(app.client.calls.reads.snapshot("mail"))).values())


async def test_a_deploy_that_adds_a_cap_applies_the_cap_to_waiting_jobs(
    make_app: Callable[[], App], run: RunApp, crowd: Crowd
) -> None:
    old, new = make_app(), make_app()
    before = old.task(queue="mail", name="crowd", caps=[Cap(5)])(crowd.__call__)
    old.apply_settings()
    handles = [before.enqueue("a") for _ in range(4)]
    new.task(queue="mail", name="crowd", caps=[Cap(5), Cap(1, per="tenant")])(crowd.__call__)

    async with run(new):
        await until(lambda: len(crowd.running) == 1, "one runs")
        await until(
            lambda: all("crowd.tenant=a" in line for line in lines(new)), "all are in the new lane"
        )
        crowd.gate.set()
        await until(lambda: not lines(new), "all have run")

    assert crowd.most == 1
    for handle in handles:
        # It cost no attempt, and happened once.
        types = event_types(new.client, handle.id, "mail")
        assert types == ["enqueued", "claimed", "rolled_back", "claimed", "succeeded"]


@pytest.mark.alone
async def test_a_worker_follows_a_live_change_of_a_cap_at_once(
    make_app: Callable[[], App], run: RunApp, crowd: Crowd
) -> None:
    app = make_app()
    task = app.task(queue="mail", name="crowd", caps=[Cap(1)])(crowd.__call__)
    app.apply_settings()
    for _ in range(6):
        task.enqueue("a")

    async with run(app):
        await until(lambda: len(crowd.running) == 1, "one runs")
        app.set_cap("mail", "task=crowd", 4)
        # Well before a worker looks around by itself.
        async with asyncio.timeout(2):
            await until(lambda: len(crowd.running) == 4, "four run")
        app.set_cap("mail", "queue", 5)
        app.set_cap("mail", "task=crowd", None)
        async with asyncio.timeout(2):
            await until(lambda: len(crowd.running) == 5, "as many as the queue takes")
        crowd.gate.set()
        await until(lambda: crowd.begun == 6, "all have run")
    assert crowd.most == 5


@pytest.mark.alone
async def test_a_worker_claims_again_when_an_exhausted_rate_admits_jobs(
    make_app: Callable[[], App], run: RunApp, crowd: Crowd
) -> None:
    app = make_app()
    task = app.task(queue="mail", name="crowd", caps=[Rate(10, per_seconds=1)])(crowd.__call__)
    crowd.gate.set()
    async with run(app):
        loop = asyncio.get_running_loop()
        await until(
            lambda: app.client.run(app.client.calls.caps.policy("mail", "crowd")) is not None,
            "it is registered",
        )
        begun = loop.time()
        for _ in range(6):
            task.enqueue("a")
        await until(lambda: crowd.begun == 6, "all have run")
        took = loop.time() - begun
    # Five pauses of 100 ms: neither faster, nor by the look every few seconds.
    assert 0.49 < took < 3


def _said(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == logger]


async def test_a_worker_keeps_and_logs_a_cap_that_an_operator_set(
    make_app: Callable[[], App], run: RunApp, crowd: Crowd, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()
    app.task(queue="mail", name="crowd", caps=[Cap(3), Cap(1, per="tenant")])(crowd.__call__)
    app.apply_settings()
    app.set_cap("mail", "task=crowd", 9)

    with caplog.at_level(logging.WARNING, "rq_core.worker"):
        async with run(app):
            await until(lambda: bool(_said(caplog, "rq_core.worker")), "it says so")

    assert _said(caplog, "rq_core.worker") == [
        "queue mail keeps task=crowd at 9; this code declares 3, which `rq-core cap mail task=crowd 3` would set"
    ]
    assert str(app.client.run(app.client.calls.caps.stored("mail"))["task=crowd"].limit) == "9"


async def test_jobs_enqueued_into_a_queue_that_became_fair_are_served_fairly(
    make_app: Callable[[], App], run: RunApp
) -> None:
    """Checks that the backlog of one tenant does not delay the first job of another tenant."""
    app, other = make_app(), make_app()
    order: list[str] = []
    for tenant in [*["big"] * 20, "small"]:
        other.enqueue("mail", "note", {"tenant": tenant})
    app.queue("mail", fair="tenant", cap=1)

    @app.task(queue="mail")
    async def note(tenant: str) -> None:
        order.append(tenant)

    async with run(app):
        await until(lambda: len(order) == 21, "all have run")

    assert order.index("small") <= 1


async def test_a_job_is_given_back_to_its_queue_if_its_key_function_fails(
    make_app: Callable[[], App], run: RunApp, crowd: Crowd
) -> None:
    app, other = make_app(), make_app()
    handle = other.enqueue("mail", "crowd", {"tenant": "a"})

    def key(**_: Any) -> str:
        raise LookupError("no such tenant")

    app.task(queue="mail", name="crowd", caps=[Cap(1, per=key)])(crowd.__call__)
    async with run(app):
        await until(lambda: handle.state() == "scheduled", "it waits for a worker that can")
    assert crowd.begun == 0
    assert event_types(app.client, handle.id, "mail") == ["enqueued", "claimed", "rolled_back"]


async def test_workers_declare_their_caps_again_after_redis_lost_everything(
    make_app: Callable[[], App], run: RunApp, crowd: Crowd
) -> None:
    """Checks a job that is claimed in the new epoch. The worker declares its caps before the job begins."""
    app = make_app()
    task = app.task(queue="mail", name="send", caps=[Cap(1)])(crowd.__call__)
    async with run(app, concurrency=2) as one, run(app, concurrency=2) as other:
        await wait_until_async(lambda: one.stats.turns and other.stats.turns, "both have begun")
        app.client.run(app.client.calls.delivery.ask([["FLUSHALL"]]))
        app.enqueue_many(task.job() for _ in range(6))
        await wait_until_async(lambda: crowd.running, "a job runs")
        await wait_until_async(
            lambda: app.client.run(app.client.calls.reads.snapshot("mail"))["caps"].get(
                "task=send"
            ),
            "the cap is declared",
        )
        crowd.gate.set()
        await wait_until_async(lambda: crowd.begun == 6, "all have run")

    assert crowd.most == 1


class Late(AsyncPoolTransport):
    """A transport that delays the answers to claims. The test releases the answers one by one."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.held: list[asyncio.Event] = []
        self.holds = False

    async def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        replies = await super().exchange(commands, *how)
        if self.holds and any(map(is_claim, commands)):
            self.held.append(asyncio.Event())
            await self.held[-1].wait()
        return replies


async def test_jobs_that_two_exchanges_claimed_before_the_caps_were_declared_are_not_run(
    make_app: Callable[[], App], run: RunApp
) -> None:
    """Checks two claims that Redis carries out in a new epoch. The worker declares its caps only afterwards."""
    app = make_app()
    ends, ran = asyncio.Semaphore(0), 0

    @app.task(queue="mail", caps=[Cap(1_000)])
    async def send() -> None:
        nonlocal ran
        ran += 1
        await ends.acquire()

    app.enqueue_many(send.job() for _ in range(50))
    async with run(app, concurrency=16, grace=0.1) as worker:
        transport = worker._client._transport = Late(app.redis_url)
        await wait_until_async(lambda: ran == 16, "all places are taken")
        app.client.run(app.client.calls.delivery.ask([["FLUSHALL"]]))
        app.enqueue_many(send.job() for _ in range(50))
        transport.holds = True
        for turns, jobs in ((1, 1), (2, 8)):
            for _ in range(jobs):
                ends.release()
            await wait_until_async(
                lambda turns=turns: len(transport.held) == turns, "a turn is carried out"
            )  # type: ignore[misc]
        old = worker._groups.queues["mail"].epoch
        transport.holds = False

        transport.held[0].set()
        await wait_until_async(
            lambda: worker._groups.queues["mail"].epoch > old, "the caps are declared again"
        )
        transport.held[1].set()
        await wait_until_async(lambda: worker.stats.rolled_back == 9, "what both brought goes back")
        for _ in range(66):
            ends.release()
        await wait_until_async(lambda: ran == 66, "all have run")
