"""Workers that stop: the grace (the time for running jobs), threads that never return, and the wake token."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from rq_core.app.app import App
from rq_core.connections.async_client import AsyncClient
from rq_core.connections.client import Client
from rq_core.worker import Worker, WorkerOptions
from tests.kit import crew
from tests.kit.wait import wait_until_async
from tests.worker.conftest import RunWorker, event_types, gone


@pytest.mark.slow
async def test_a_cancelled_handler_is_interrupted_once_and_may_clean_up(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """Checks that later heartbeats, which report the cancel again, do not interrupt the handler a second time."""
    handle = crew.tidying.enqueue(1.2 * crew.LEASE)
    async with run_worker():
        await wait_until_async(lambda: witness.lines("begin"), "the job runs")
        handle.cancel()
        await wait_until_async(gone(client, handle.id), "it stopped")

    assert len(witness.lines("tidied")) == 1


@pytest.mark.slow
async def test_the_job_of_an_async_handler_that_ignores_the_stop_is_given_back_to_its_queue(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.tidying.enqueue(4.0)
    async with run_worker(grace=0.0):
        await wait_until_async(lambda: witness.lines("begin"), "the job runs")

    job = client.run(client.calls.reads.job(handle.id, ["crew"]))
    assert job is not None
    assert job.state == "ready"
    assert "failed" not in job.fields
    await wait_until_async(lambda: witness.lines("tidied"), "the handler came to its end")


async def test_a_stopping_worker_lets_its_jobs_finish_though_another_job_becomes_due_meanwhile(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """Checks a worker that is woken during its grace. The worker still lets its jobs finish."""
    handle = crew.sleeping.enqueue(1.0)
    async with run_worker(grace=10.0) as worker:
        await wait_until_async(lambda: witness.lines("begin"), "the job runs")
        crew.coroutine.with_options(delay=0.4).enqueue()
        turns = worker.stats.turns
        await wait_until_async(lambda: worker.stats.turns > turns, "it knows what will be due")

    assert event_types(client, handle.id) == ["enqueued", "claimed", "succeeded"]


@pytest.mark.parametrize(
    "options", [{}, {"burst": True}, {"max_jobs": 1}], ids=["stopped", "burst", "retired"]
)
async def test_a_thread_that_never_returns_does_not_delay_the_end_of_its_worker(
    valkey_url: str, options: dict[str, Any]
) -> None:
    """Checks a job that is settled at its timeout while its thread still runs.

    A worker that retires does not wait forever for this thread.
    """
    release = threading.Event()
    with App(valkey_url) as app:

        @app.task(queue="q", timeout=0.1, retry=crew.quick)
        def hangs() -> None:
            release.wait(60)

        handle = hangs.with_options(max_attempts=1).enqueue()
        worker = Worker(app, WorkerOptions(queues=("q",), grace=60.0, **options))
        running = asyncio.create_task(worker.run())
        try:
            await wait_until_async(lambda: handle.state() == "dead", "it is reported")
            if not options:
                worker.stop()
            async with asyncio.timeout(15):
                assert await running is False
        finally:
            release.set()


async def test_workers_that_stop_together_leave_one_wake_token(client: Client, app: App) -> None:
    """Checks workers that all put their token back at once.

    The doctor and `audit verify` would report two tokens as a finding.
    """
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(app.redis_url)) for _ in range(8)]
        await asyncio.gather(*(each.run(each.calls.delivery.handshake("crew")) for each in clients))
        for _ in range(5):
            await asyncio.gather(*(each.return_token("crew") for each in clients))

    assert client.run(client.calls.reads.snapshot("crew"))["wake"] == ["1"]


async def test_a_worker_that_stops_returns_its_wake_token_before_its_running_jobs_end(
    client: Client, app: App, witness: crew.Witness
) -> None:
    """Checks a token that Redis gave to the worker just before the stop, and that is lost with its connection.

    Otherwise a job could wait until idle workers look by themselves.
    """
    worker = Worker(app, WorkerOptions(queues=("crew",), grace=30.0))
    handle = crew.gated.enqueue()
    running = asyncio.create_task(worker.run())
    try:
        await wait_until_async(lambda: witness.lines("begin"), "the job runs")
        snapshot = client.calls.reads.snapshot
        await wait_until_async(
            lambda: not client.run(snapshot("crew"))["wake"], "the worker's wait takes the token"
        )
        worker.stop()
        await wait_until_async(lambda: client.run(snapshot("crew"))["wake"], "it returns the token")
        assert handle.state() == "running"
    finally:
        witness.let_end()
        if not worker.asked:
            worker.stop()
        async with asyncio.timeout(30):
            await running
