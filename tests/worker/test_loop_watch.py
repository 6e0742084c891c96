"""Facts about a worker for its supervisor: the lag of its event loop, and how long ago Redis last answered a claim."""

import asyncio
import inspect
import time

import pytest

from rq_core import App
from rq_core.worker import Worker, WorkerOptions
from rq_core.worker.claim_counters import FlowTable
from rq_core.worker.liveness import loop_lag
from rq_core.worker.liveness.loop_lag import LoopWatch
from tests.kit.wait import wait_until, wait_until_async
from tests.kit.working import at_work, working


async def test_the_lag_of_a_blocked_event_loop_is_published_and_reset_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_lag, "EVERY_S", 0.01)
    flow = FlowTable()
    watch = LoopWatch(flow)
    watch.start()
    time.sleep(0.2)  # noqa: ASYNC251 - the block that is to be seen
    await asyncio.sleep(0)

    await wait_until_async(lambda: flow.vitals().lag_s >= 0.15, "the lag is told")
    await wait_until_async(lambda: flow.vitals().lag_s < 0.15, "and forgotten later")
    watch.stop()

    assert flow.vitals().answered_at == 0


async def test_the_log_names_the_handler_that_blocks_the_event_loop(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_lag, "EVERY_S", 0.02)
    monkeypatch.setattr(loop_lag, "BLOCKED_S", 0.1)
    app = App(valkey_url)

    @app.task
    async def crunch() -> None:
        wait_until(lambda: "blocked the event loop" in caplog.text, "the log says so")

    async with working(app) as worker:
        job = await crunch.enqueue_async()
        await wait_until_async(lambda: worker.stats.completed == 1, "it has ended")

    (said,) = [r for r in caplog.records if "blocked the event loop" in r.getMessage()]
    assert (said.__dict__["job"], said.__dict__["task"]) == (job.id, "crunch")
    line = inspect.getsourcelines(crunch.function)[1] + 2
    assert f", at {__file__}:{line}: " in said.getMessage()


async def test_a_worker_publishes_when_redis_last_answered_until_the_worker_has_ended(
    app: App,
) -> None:
    flow = FlowTable()
    began = time.monotonic()
    worker = Worker(app, WorkerOptions(queues=("crew",)), flow=flow)
    async with at_work(worker):
        await wait_until_async(lambda: flow.vitals().turns >= 1, "it has claimed")
        while_it_works = flow.vitals()

    assert began < while_it_works.answered_at <= time.monotonic()
    assert while_it_works.resident > 1_000_000
    assert while_it_works.turns_s > 0
    assert flow.vitals().answered_at == 0


async def test_a_stopping_worker_publishes_that_it_does_not_claim(app: App) -> None:
    flow = FlowTable()
    worker = Worker(app, WorkerOptions(queues=("crew",), grace=60), flow=flow)
    async with at_work(worker):
        await app.tasks["sleeping"].enqueue_async(60)
        await wait_until_async(lambda: worker.stats.claimed == 1, "it runs")
        worker.stop()

        await wait_until_async(lambda: flow.vitals().answered_at == 0, "it claims no more")
        flow.answered()

        assert flow.vitals().answered_at == 0
    await app.connections.aclose()
