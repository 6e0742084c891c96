"""Claims whose answers arrive late. A job whose lease has expired does not begin.

If the lease may have expired, the worker extends the lease before the job begins, or gives the job back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.connections.transport import AsyncPoolTransport
from rq_core.worker.liveness.heartbeat import BEATS_IN_LEASE
from tests.kit import crew
from tests.kit.transports import is_claim
from tests.kit.wait import wait_until_async
from tests.worker.conftest import RunWorker, begin, event_types, gone


class LateTransport(AsyncPoolTransport):
    """A transport that holds back the first answer with jobs, until the test releases this answer."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.holding = True
        self.held = asyncio.Event()
        self.release = asyncio.Event()

    async def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        replies = await super().exchange(commands, *how)
        lists = [each for each in replies if isinstance(each, list)]
        brought = any(is_claim(c) for c in commands) and any(len(each) > 2 for each in lists)
        if self.holding and brought:
            self.holding = False
            self.held.set()
            await self.release.wait()
        return replies


async def held_back(app: App) -> tuple[LateTransport, Any, Any]:
    """Start a worker, and wait for a delayed answer. Return the transport, the worker, and its asyncio task."""
    transport = LateTransport(app.redis_url)
    worker, ending = begin(app.redis_url, transport=transport)
    await wait_until_async(
        lambda: transport.held.is_set() or ending.done(), "the answer is held back"
    )
    assert not ending.done()
    return transport, worker, ending


async def test_a_job_whose_claim_is_answered_after_its_lease_does_not_begin(
    app: App, client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """Checks that the job does not run twice at once. The worker knows from its own clock that the lease has
    expired."""
    handle = crew.sleeping.enqueue(0.1)
    transport, worker, ending = await held_back(app)
    async with run_worker():
        await wait_until_async(gone(client, handle.id), "the job has run elsewhere")
    transport.release.set()
    other = crew.coroutine.enqueue()
    await wait_until_async(gone(client, other.id), "the worker goes on")
    worker.stop()
    await ending

    assert len(witness.lines("begin")) == 1
    assert event_types(client, handle.id) == [
        "enqueued", "claimed", "lease_expired", "claimed", "succeeded",
    ]  # fmt: skip
    assert (worker.stats.claimed, worker.stats.refused) == (1, 0)


@pytest.fixture
def long_lease(app: App) -> Iterator[float]:
    """Set a lease that is three times as long as usual, for busy machines. Yield its length in seconds."""
    app.queue("crew", lease=3 * crew.LEASE)
    yield 3 * crew.LEASE
    app.queue("crew", lease=crew.LEASE)


@pytest.mark.slow
async def test_a_job_whose_claim_is_answered_within_its_lease_begins(
    app: App, client: Client, witness: crew.Witness, long_lease: float
) -> None:
    """Checks that the worker does not give the job back. After an outage all answers are late, and rollbacks waste
    rates."""
    handle = crew.sleeping.enqueue(0.1)
    transport, worker, ending = await held_back(app)
    # The next lease is counted from here, so this is the moment from which on it is late.
    late = time.monotonic() + long_lease * (BEATS_IN_LEASE - 1) / BEATS_IN_LEASE
    await wait_until_async(lambda: time.monotonic() > late, "the answer is late")
    transport.release.set()
    await wait_until_async(gone(client, handle.id), "it has run")
    worker.stop()
    await ending

    assert event_types(client, handle.id) == ["enqueued", "claimed", "succeeded"]


async def test_claimed_jobs_that_wait_for_a_blocked_event_loop_are_given_back_to_the_queue(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """Checks jobs that wait behind a handler which blocks the event loop. No heartbeat extends their leases."""
    async with run_worker() as worker:
        arrive = worker._handlers.arrive

        def arrive_late(claim: Any, since: float) -> None:
            worker._handlers.arrive = arrive  # type: ignore[method-assign]
            arrive(claim, since - crew.LEASE)

        worker._handlers.arrive = arrive_late  # type: ignore[method-assign]
        handle = crew.coroutine.enqueue()
        await wait_until_async(gone(client, handle.id), "it has run in the end")

    assert len(witness.lines("coroutine")) == 1
    assert event_types(client, handle.id) == [
        "enqueued", "claimed", "rolled_back", "claimed", "succeeded",
    ]  # fmt: skip
    assert worker.stats.rolled_back == 1


async def test_a_handler_is_not_called_if_its_job_is_cancelled_before_its_thread_begins(
    client: Client, run_worker: RunWorker, witness: crew.Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a busy machine, on which a job's thread starts some time after the worker has submitted the job."""
    submitted: list[Any] = []
    async with run_worker() as worker:
        executor = worker._handlers.executor
        submit = executor._threads.submit
        monkeypatch.setattr(executor._threads, "submit", submitted.append)
        handle = crew.function.enqueue()
        await wait_until_async(lambda: submitted, "its thread is about to begin")
        handle.cancel()
        await wait_until_async(lambda: submitted[0].ending, "it is told")
        submit(submitted[0])
        await wait_until_async(gone(client, handle.id), "it has ended")

    assert witness.lines("function") == []
    assert event_types(client, handle.id)[-1] == "cancelled"
