"""Workers that vanish while a claim is armed. The claim may take jobs once more; they run elsewhere after the lease."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from rq_core.connections.client import Client
from rq_core.worker import Worker, WorkerOptions, wakeups
from scripts.measure.benchmarks.delaying import delayed
from tests.kit import crew
from tests.kit.crew import worker_process
from tests.kit.proxy import Mode, Proxy
from tests.kit.wait import wait_until, wait_until_async
from tests.worker.armed.test_armed_claims import Far
from tests.worker.conftest import event_types, gone

pytestmark = pytest.mark.slow


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    crew.app.connect_to(redis_url)
    yield crew.app.client
    crew.app.close()


def waits(client: Client) -> bool:
    """Return whether a worker waits for a token."""
    (text,) = client.run(client.calls.delivery.ask([["CLIENT", "LIST"]]))
    return "cmd=blpop" in text


def warm_up(client: Client) -> None:
    """Let the only worker run jobs, so that it knows how far away its server is."""
    for _ in range(20):
        wait_until(gone(client, crew.function.enqueue().id), "it works", timeout=20)


def state(client: Client, job_id: str) -> str | None:
    found = client.run(client.calls.reads.job(job_id, ["crew"]))
    return None if found is None else found.state


def test_a_job_that_is_enqueued_when_the_waiting_worker_is_killed_runs_on_another_worker(
    client: Client, redis_url: str, witness: crew.Witness
) -> None:
    handles = []
    with delayed(redis_url, 0.001) as far:
        for _ in range(3):
            with worker_process(far, witness) as killed:
                warm_up(client)
                wait_until(lambda: waits(client), "it waits", timeout=20)
                os.kill(killed.pid, signal.SIGKILL)
                handles.append(crew.coroutine.enqueue())
        with worker_process(redis_url, witness):
            wait_until(gone(client, *(h.id for h in handles)), "all have run", timeout=20)

    assert len(witness.lines("coroutine")) == 3
    for killed_later, handle in enumerate(reversed(handles)):
        types = event_types(client, handle.id)
        assert types[-1] == "succeeded"
        # The armed claim of each worker that is killed later may take the job again, after its lease.
        assert types.count("lease_expired") <= 1 + killed_later


def test_a_job_that_a_suspended_worker_claims_runs_on_another_worker_after_the_lease(
    client: Client, redis_url: str, witness: crew.Witness
) -> None:
    """Checks SIGSTOP. When the worker goes on, it does not run the job."""
    with delayed(redis_url, 0.001) as far, worker_process(far, witness) as zombie:
        warm_up(client)
        for tries in itertools.count(1):
            assert tries < 50, "it never claimed a job while it was stopped"
            wait_until(lambda: waits(client), "it waits", timeout=20)
            os.kill(zombie.pid, signal.SIGSTOP)
            wait_until(lambda: zombie.is_stopped, "it is stopped")
            handle = crew.coroutine.enqueue()
            with contextlib.suppress(AssertionError):
                wait_until(lambda h=handle: state(client, h.id) == "running", "", timeout=0.5)
                break
            # Its wait ended just before. The next one may fit.
            os.kill(zombie.pid, signal.SIGCONT)
            wait_until(gone(client, handle.id), "it has run the job", timeout=20)
        with worker_process(redis_url, witness):
            wait_until(gone(client, handle.id), "the job has run elsewhere", timeout=20)
            os.kill(zombie.pid, signal.SIGCONT)
            last = crew.coroutine.enqueue()
            wait_until(gone(client, last.id), "the workers go on", timeout=20)

    assert len(witness.lines("coroutine")) == tries + 1
    assert event_types(client, handle.id)[:5] == [
        "enqueued", "claimed", "lease_expired", "claimed", "succeeded",
    ]  # fmt: skip


async def test_a_job_whose_worker_lost_its_network_after_the_claim_runs_on_another_worker_after_the_lease(
    client: Client, redis_url: str, witness: crew.Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a network that passes no data on and ends no connection. Once it works again, the worker learns that it
    has lost the job, and works on."""
    monkeypatch.setattr(wakeups, "PLAIN_SHARE", 0.0)
    options = WorkerOptions(queues=("crew",), grace=20.0)
    with Proxy(urlsplit(redis_url).port or 0) as proxy:
        transport = Far(proxy.url)
        cut_off = Worker(crew.app, options, transport=transport)
        other = Worker(crew.app, options)
        running = [asyncio.create_task(cut_off.run())]
        try:
            for _ in range(30):
                armed = transport.armed
                await wait_until_async(lambda n=armed: transport.armed > n, "its claim is armed")  # type: ignore[misc]
                await wait_until_async(lambda: waits(client), "Redis has it")
                with proxy.doing(Mode.BLACK_HOLE):
                    handle = crew.coroutine.enqueue()
                    ends = time.monotonic() + 0.5
                    await wait_until_async(
                        lambda h=handle, e=ends: (  # type: ignore[misc]
                            state(client, h.id) in ("running", None) or time.monotonic() > e
                        ),
                        "it is claimed",
                    )
                    if state(client, handle.id) == "running":
                        running.append(asyncio.create_task(other.run()))
                        await wait_until_async(gone(client, handle.id), "it has run elsewhere")
                        break
                await wait_until_async(gone(client, handle.id), "it has run")
            assert len(running) == 2
            claimed = cut_off.stats.claimed
            other.stop()
            await running[1]
            last = crew.coroutine.enqueue()
            await wait_until_async(gone(client, last.id), "the worker works on")
        finally:
            cut_off.stop()
            other.stop()
            await asyncio.gather(*running)

    assert claimed == cut_off.stats.claimed - 1
    types = event_types(client, handle.id)
    assert types.count("claimed") == 2
    assert types.count("lease_expired") == 1
    assert types.count("succeeded") == 1
