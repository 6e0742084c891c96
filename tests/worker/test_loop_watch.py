"""How late a worker's loop is, and how long ago it claimed, stands where its supervisor sees it."""

import asyncio
import time

import pytest

from rq_core import App
from rq_core.worker import Worker, WorkerOptions, loop_watch
from rq_core.worker.flow import FlowTable
from rq_core.worker.loop_watch import LoopWatch
from tests.kit.wait import wait_until_async
from tests.kit.working import at_work


async def test_a_loop_that_was_blocked_is_told_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "EVERY_S", 0.01)
    flow = FlowTable()
    watch = LoopWatch(flow)
    watch.start()
    time.sleep(0.2)  # noqa: ASYNC251 - the block that is to be seen
    await asyncio.sleep(0)

    await wait_until_async(lambda: flow.vitals().lag_s >= 0.15, "the lag is told")
    await wait_until_async(lambda: flow.vitals().lag_s < 0.15, "and forgotten later")
    watch.stop()

    assert flow.vitals().answered_at == 0


async def test_a_worker_tells_when_it_last_claimed_until_it_has_ended(app: App) -> None:
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


async def test_a_worker_that_lets_its_jobs_end_is_not_expected_to_claim(app: App) -> None:
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
