"""Workers that get a signal to stop while Redis is down or lacks its scripts. A worker ends within its grace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from rq_core.connections.client import Client
from rq_core.errors import ServerUnavailable, ServerUnsuitable
from rq_core.protocol.calls import claims
from rq_core.worker import Worker, WorkerOptions
from tests.kit import crew
from tests.kit.servers import RedisServer
from tests.kit.transports import Counted
from tests.kit.wait import wait_until, wait_until_async
from tests.worker.conftest import begin, event_types, one_engine


@one_engine
@pytest.mark.slow
async def test_a_worker_can_be_stopped_while_redis_is_down(
    start_redis: Callable[..., RedisServer], witness: crew.Witness
) -> None:
    server = start_redis()
    worker, running = begin(server.url, grace=0.5)
    await crew.sleeping.enqueue_async(60)
    await wait_until_async(lambda: witness.lines("begin"), "the job runs")
    server.kill()

    worker.stop()
    async with asyncio.timeout(0.5 + 0.5 + 1.0 + 5.0 + 5.0):
        await running
    await crew.app.aclose()

    assert witness.lines("end") == []


@pytest.mark.slow
async def test_a_worker_that_stops_during_an_outage_claims_nothing_after_the_outage(
    start_redis: Callable[..., RedisServer], witness: crew.Witness
) -> None:
    """Checks a claim that waits for the server when the worker stops. The worker never sends this claim."""
    server = start_redis(appendonly="yes", appendfsync="always")
    transport = Counted(server.url)
    worker, running = begin(server.url, transport=transport, grace=20.0)
    client = crew.app.client
    try:
        handle = await crew.sleeping.enqueue_async(2.0)
        await wait_until_async(lambda: witness.lines("begin"), "the job runs")
        waiting = await crew.coroutine.with_options(delay=1.0).enqueue_async()
        due = client.run(client.calls.delivery.handshake("crew")).now_ms + 1_000
        server.kill()
        sent = transport.sent
        await wait_until_async(lambda: transport.sent > sent, "a claim waits for the server")
        worker.stop()
        await wait_until_async(lambda: time.time() * 1000 > due, "it is due")
        server.start()
        await running
        types = {each: event_types(client, each) for each in (handle.id, waiting.id)}
    finally:
        worker.stop()
        await running
        await crew.app.aclose()
        client.close()

    assert types[handle.id] == ["enqueued", "claimed", "succeeded"]
    assert types[waiting.id] in (["enqueued"], ["enqueued", "promoted"])


@one_engine
@pytest.mark.slow
async def test_a_stopping_worker_waits_only_one_grace_for_a_claim_and_its_jobs_while_the_server_is_down(
    start_redis: Callable[..., RedisServer], witness: crew.Witness
) -> None:
    """Checks that an unanswered claim and the running jobs share one grace. The supervisor need not kill the worker."""
    server = start_redis()
    transport = Counted(server.url)
    worker, running = begin(server.url, transport=transport, grace=3.0)
    await crew.tidying.enqueue_async(0.0)
    await wait_until_async(lambda: witness.lines("begin"), "the job runs")
    server.kill()
    sent = transport.sent
    await wait_until_async(lambda: transport.sent > sent, "a claim waits for the server")

    began = time.monotonic()
    worker.stop()
    await wait_until_async(lambda: witness.lines("tidied"), "its time is over")
    took = time.monotonic() - began
    await running
    await crew.app.aclose()

    assert 2.5 < took < 5.0


async def test_a_worker_that_is_stopped_while_it_connects_ends_without_an_error(
    start_redis: Callable[..., RedisServer],
) -> None:
    """Checks that the supervisor does not count this end as a failure."""
    server = start_redis()
    server.freeze()
    crew.app.connect_to(server.url)
    worker = Worker(crew.app, WorkerOptions(queues=("crew",)))
    running = asyncio.create_task(worker.run())
    try:
        await wait_until_async(lambda: worker._client._transport._pool.busy, "it asks")
        worker.stop()
        async with asyncio.timeout(2):
            assert await running is True
    finally:
        server.thaw()
        await crew.app.aclose()


class Forgetful:
    """A server that can forget its scripts. Its user may load scripts only until then."""

    def __init__(self, server: RedisServer) -> None:
        self.owner = Client(server.url)
        self.url = server.url.replace("//", "//limited:word@")
        self._control = server.client()
        self._control.execute_command(
            "ACL", "SETUSER", "limited", "on", ">word", "~*", "&*", "+@all"
        )

    def forget(self) -> None:
        self._control.execute_command("ACL", "SETUSER", "limited", "-function|load", "-script|load")
        self._control.execute_command("FUNCTION", "FLUSH")
        self._control.execute_command("SCRIPT", "FLUSH")

    def load_complete(self) -> None:
        """Load the script `complete` as a user who may still load scripts."""
        held = [("nobody", "1-1")]
        assert self.owner.run(claims.complete("crew", "w-other", held))

    def close(self) -> None:
        self.owner.close()
        self._control.close()


@pytest.fixture
def forgetful(start_redis: Callable[..., RedisServer]) -> Iterator[Forgetful]:
    server = Forgetful(start_redis())
    yield server
    server.close()


def _said(caplog: pytest.LogCaptureFixture, words: str) -> int:
    """Return how often workers logged this text, without the repeated lines of heartbeats."""
    return sum(
        words in r.getMessage()
        for r in caplog.records
        if r.name != "rq_core.worker.liveness.heartbeat"
    )


@pytest.mark.parametrize("reportable", [True, False])
@pytest.mark.slow
async def test_a_worker_finishes_its_jobs_though_it_may_not_load_the_scripts_that_redis_forgot(
    forgetful: Forgetful,
    witness: crew.Witness,
    caplog: pytest.LogCaptureFixture,
    reportable: bool,
) -> None:
    """Checks that the worker does not end at once, and so interrupts no job."""
    _, running = begin(forgetful.url, concurrency=2, grace=4.0)
    job = await crew.gated.enqueue_async()
    await wait_until_async(lambda: witness.lines("begin"), "the job runs")
    forgetful.forget()
    other = crew.coroutine.job()
    forgetful.owner.run(forgetful.owner.calls.enqueue.many([other]))
    await wait_until_async(lambda: _said(caplog, "loads no scripts"), "it has noticed")
    assert witness.lines("end") == []
    if reportable:
        forgetful.load_complete()
    witness.let_end()

    with pytest.raises(ServerUnsuitable, match="loads no scripts"):
        await running
    await crew.app.aclose()

    ended = ["succeeded"] if reportable else []
    assert [line["job"] for line in witness.lines("end")] == [job.id]
    assert event_types(forgetful.owner, job.id) == ["enqueued", "claimed", *ended]
    assert event_types(forgetful.owner, other.id) == ["enqueued"]
    assert _said(caplog, "loads no scripts") == 1
    assert _said(caplog, "could not report 1 finished job:") == (not reportable)


async def test_a_retiring_worker_whose_settlements_are_refused_ends_after_the_grace(
    forgetful: Forgetful, witness: crew.Witness
) -> None:
    """Checks that the worker lets its jobs finish, and then tries for one grace to report their ends."""
    worker, running = begin(forgetful.url, max_jobs=1, grace=1.0)
    await crew.gated.enqueue_async()
    await wait_until_async(lambda: worker.retired and witness.lines("begin"), "it retires")
    forgetful.forget()
    witness.let_end()

    with pytest.raises(ServerUnsuitable, match="loads no scripts"):
        async with asyncio.timeout(15):
            await running
    await crew.app.aclose()

    assert len(witness.lines("end")) == 1


@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["alone", "supervised"])
@pytest.mark.slow
def test_a_worker_that_the_server_refuses_ends_though_a_handler_is_still_running(
    forgetful: Forgetful, witness: crew.Witness, options: tuple[str, ...]
) -> None:
    """Checks that the process does not wait for the running handler. A new process can replace it."""
    crew.app.connect_to(forgetful.url)
    crew.stubborn.enqueue()
    crew.app.close()
    with crew.worker_process(forgetful.url, witness, "--grace", "1", *options) as process:
        wait_until(lambda: witness.lines("begin"), "the job runs", timeout=20)
        forgetful.forget()
        forgetful.owner.run(
            forgetful.owner.calls.enqueue.many([crew.coroutine.job(), crew.coroutine.job()])
        )

        (begun,) = witness.lines("begin")
        if options:
            wait_until(lambda: not psutil.pid_exists(begun["pid"]), "its process ends", timeout=20)
            wait_until(lambda: "ended by status 69" in witness.log(), "it is to be replaced")
        else:
            assert process.wait(20) == 1
            assert "worker cannot run: " in witness.log().splitlines()[-1]


@pytest.mark.slow
async def test_a_worker_without_a_server_reports_the_outage_and_ends(witness: crew.Witness) -> None:
    crew.app.connect_to("redis://127.0.0.1:1/0")

    with pytest.raises(ServerUnavailable, match="Is it running"):
        async with asyncio.timeout(10):
            await Worker(crew.app, WorkerOptions(queues=("crew",))).run()

    await crew.app.aclose()
