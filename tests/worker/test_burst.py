"""Workers with the option ``burst``. A worker ends when it can do no more work."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.worker import Worker, WorkerOptions
from tests.kit import crew


async def test_a_burst_ends_when_no_job_is_ready_running_or_due(
    app: App, client: Client, witness: crew.Witness
) -> None:
    app.enqueue_many(crew.function.job(n=n) for n in range(25))
    tomorrow = crew.function.with_options(delay=86_400).enqueue(99)
    worker = Worker(app, WorkerOptions(queues=("crew",), concurrency=4, burst=True))

    async with asyncio.timeout(20):
        await worker.run()

    assert len(witness.lines("function")) == 25
    assert tomorrow.state() == "scheduled"


async def test_a_burst_ends_though_a_paused_queue_has_jobs(app: App, client: Client) -> None:
    handle = crew.function.enqueue(1)
    client.run(client.calls.admin.configure("crew", {"paused": 1}))

    async with asyncio.timeout(10):
        await Worker(app, WorkerOptions(queues=("crew",), burst=True)).run()

    assert handle.state() == "ready"


@pytest.mark.parametrize("scope", ["queue", "task=function"])
async def test_a_burst_ends_though_jobs_wait_for_a_cap_of_0(
    app: App, client: Client, scope: str
) -> None:
    handle = crew.function.enqueue(1)
    client.run(client.calls.caps.set("crew", [(scope, "0", -1)]))

    async with asyncio.timeout(10):
        await Worker(app, WorkerOptions(queues=("crew",), burst=True)).run()

    assert handle.state() == "ready"
    assert client.run(client.calls.reads.counts("crew")).waiting == (scope != "queue")


@pytest.mark.parametrize("concurrency", [1, 100])
async def test_a_burst_worker_logs_once_which_jobs_it_leaves_in_the_queue(
    app: App,
    client: Client,
    witness: crew.Witness,
    caplog: pytest.LogCaptureFixture,
    concurrency: int,
) -> None:
    """Checks a rate that is used up for hours. At its end, the worker logs how many jobs still wait."""
    client.run(client.calls.caps.set("crew", [("task@3600s=coroutine", "1/3600000ms/1", -1)]))
    for n in range(3):
        job = app.job("crew", "coroutine", {"n": n})
        client.run(client.calls.enqueue.many([job._replace(lane="2+task@3600s=coroutine")]))
    options = WorkerOptions(queues=("crew",), burst=True, concurrency=concurrency)

    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(20):
            await Worker(app, options).run()

    assert len(witness.lines("coroutine")) == 1
    (said,) = [r.getMessage() for r in caplog.records if "left" in r.getMessage()]
    assert said == (
        "jobs are left that may not run now: 2 in crew; `rq-core caps crew` shows the scopes that they wait for"
    )


@pytest.mark.slow
async def test_a_burst_runs_the_jobs_that_wait_in_lanes(
    app: App, client: Client, witness: crew.Witness
) -> None:
    """Checks jobs with scopes, which wait in lanes and not in a ready list."""
    client.run(client.calls.caps.set("crew", [("task=coroutine", "1", -1)]))
    app.enqueue_many(crew.coroutine.job(n=n) for n in range(30))
    counts = client.run(client.calls.reads.counts("crew"))
    assert (counts.waiting, counts.open_lanes, sum(counts.ready.values())) == (30, 1, 0)

    async with asyncio.timeout(20):
        await Worker(app, WorkerOptions(queues=("crew",), concurrency=4, burst=True)).run()

    assert len(witness.lines("coroutine")) == 30
    assert client.run(client.calls.reads.counts("crew")).waiting == 0
    assert client.run(client.calls.reads.snapshot("crew"))["jobs"] == {}
