"""Counts of durable jobs, in the last log record of a worker and in its metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from rq_core import RetryPolicy, durable
from rq_core.app.app import App
from rq_core.connections.client import Client
from tests.kit import crew
from tests.kit.wait import wait_until_async
from tests.kit.working import working
from tests.worker.conftest import event_types

QUEUE = "crew"


@pytest.fixture
def own(app: App) -> Iterator[App]:
    """Yield a separate app for this test, on the same server as the crew's app."""
    made = App(app.redis_url)
    made.queue(QUEUE, lease=crew.LEASE)
    yield made
    made.close()


async def test_the_last_log_record_of_a_worker_counts_parked_and_cancelled_jobs_separately(
    own: App, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    @own.task(queue=QUEUE)
    async def waits() -> None:
        await durable().wait("approval", str)

    @own.task(queue=QUEUE, retry=RetryPolicy(max_attempts=1))
    async def fails() -> None:
        raise ValueError("no")

    @own.task(queue=QUEUE)
    async def lasts() -> None:
        await asyncio.Event().wait()

    caplog.set_level(logging.INFO, logger="rq_core.worker")
    parked = waits.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0) as worker:
        await wait_until_async(lambda: "parked" in event_types(client, parked.id), "it is parked")
        own.signal(parked, "approval", "yes")
        fails.enqueue()
        cancelled = lasts.enqueue()
        await wait_until_async(lambda: worker.stats.failed == 1, "the other one has failed")
        await wait_until_async(lambda: "claimed" in event_types(client, cancelled.id), "it runs")
        cancelled.cancel()
        await wait_until_async(lambda: worker.stats.cancelled == 1, "it is cancelled", timeout=20)
        await wait_until_async(lambda: worker.stats.completed == 1, "it has succeeded")

    (record,) = [each for each in caplog.records if each.getMessage() == "worker stopped"]
    names = ("claimed", "completed", "failed", "cancelled", "parked", "rolled_back")
    assert [4, 1, 1, 1, 1, 0] == [vars(record)[name] for name in names]
