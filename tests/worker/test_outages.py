"""Outages of Redis while a worker runs. No job is lost, and the worker continues without help."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from rq_core import App, Cap, current_job
from rq_core.connections.client import Client
from rq_core.connections.transport import AsyncPoolTransport
from rq_core.protocol.engine.plan import Lost, Patience, Unsent
from rq_core.worker import Worker, WorkerOptions
from tests.kit import crew
from tests.kit.servers import RedisServer, engines
from tests.kit.transports import LossyAsyncTransport
from tests.kit.wait import wait_until, wait_until_async
from tests.rigs import outages
from tests.worker.conftest import begin, emptied, event_types, gone, log_of


@pytest.mark.slow
async def test_a_worker_continues_after_redis_was_killed_and_restarted(
    start_redis: Callable[..., RedisServer], witness: crew.Witness
) -> None:
    server = start_redis(appendonly="yes", appendfsync="always")
    worker, running = begin(server.url, grace=1.0)

    def ran() -> set[int]:
        """Return the numbers of the jobs that ran, once or more often."""
        return {line["n"] for line in witness.lines("coroutine")}

    try:
        for n in range(3):
            done = await crew.coroutine.enqueue_async(n=2 * n)
            await wait_until_async(
                lambda n=n: 2 * n in ran(),  # type: ignore[misc]
                f"job {done.id} ran before the outage",
            )
            server.kill()
            server.start()
            await crew.coroutine.enqueue_async(n=2 * n + 1)
            await wait_until_async(
                lambda n=n: 2 * n + 1 in ran(),  # type: ignore[misc]
                "a job ran after the outage",
                timeout=10.0,
            )
        client = crew.app.client
        await wait_until_async(emptied(client), "all is settled")
        epochs = [raw for _, raw in client.run(client.calls.audit.read_outbox("crew", "-", 1000))]
    finally:
        worker.stop()
        await running
        await crew.app.aclose()

    # Each restart is another history of Redis, and the log says so.
    reasons = [raw["data"] for raw in epochs if raw["type"] == "epoch_started"]
    assert len(reasons) == 4
    assert all("replid_changed" in data for data in reasons[1:])


@pytest.mark.slow
async def test_a_job_that_finishes_during_an_outage_is_reported_after_the_outage(
    start_redis: Callable[..., RedisServer], witness: crew.Witness
) -> None:
    """Checks an outage that is shorter than a lease. The claim stays in force, and the job runs once."""
    server = start_redis(appendonly="yes", appendfsync="always")
    worker, running = begin(server.url, grace=1.0)
    try:
        handle = await crew.sleeping.enqueue_async(0.2)
        await wait_until_async(lambda: witness.lines("begin"), "the job runs")
        server.kill()
        await wait_until_async(lambda: witness.lines("end"), "it finished while Redis was away")
        server.start()
        client = crew.app.client
        await wait_until_async(gone(client, handle.id), "it is reported")
        types = [each.event for each in log_of(client)]
    finally:
        worker.stop()
        await running
        await crew.app.aclose()

    assert [t for t in types if t not in ("epoch_started", "policy_changed")] == [
        "enqueued", "claimed", "succeeded",
    ]  # fmt: skip
    assert len(witness.lines("begin")) == 1


@pytest.mark.parametrize("place", range(len(engines())), ids=[each.name for each in engines()])
@pytest.mark.slow
def test_a_worker_claims_again_after_each_kind_of_outage(tmp_path: Path, place: int) -> None:
    """Checks five outages: a restart, a freeze, a network that drops all data, reset connections, and forgotten
    scripts.

    The test is a short form of `scripts/prove/live outages`.
    """
    found = outages.run(tmp_path, times=5, seconds=1.0, seed=place, engine=engines()[place])

    assert [each.kind for each in found] == list(outages.KINDS)
    assert outages.problems(found) == []


async def test_no_job_loses_its_claim_if_redis_forgets_scripts_within_a_pipeline(
    valkey_url: str, witness: crew.Witness
) -> None:
    """Checks the commands at the head of the pipeline, which Redis has carried out. No command is lost or repeated."""
    crew.app.connect_to(valkey_url)
    transport = LossyAsyncTransport(valkey_url)
    transport.flush = True
    options = WorkerOptions(queues=("crew", "other"), concurrency=4, grace=1.0)
    worker = Worker(crew.app, options, transport=transport)
    running = asyncio.create_task(worker.run())
    jobs = [crew.coroutine.job(n=n) for n in range(20)]
    jobs += [crew.coroutine.with_options(queue="other").job(n=n) for n in range(20)]
    client = crew.app.client
    client.run(client.calls.enqueue.many(jobs))
    try:
        await wait_until_async(
            lambda: (
                not any(
                    client.run(client.calls.reads.snapshot(queue))["jobs"]
                    for queue in ("crew", "other")
                )
            ),
            "all is settled",
            timeout=20,
        )
    finally:
        worker.stop()
        await running
        await crew.app.aclose()

    assert transport.flushed > 5
    assert len(witness.lines("coroutine")) == len(jobs)


@pytest.mark.slow
async def test_a_late_reply_to_an_abandoned_blocking_pop_is_not_read_as_the_reply_to_a_later_command(
    start_redis: Callable[..., RedisServer],
) -> None:
    """Checks that the client does not read this reply as the reply to its next command."""
    server = start_redis()
    transport = AsyncPoolTransport(server.url)
    await transport.exchange([["PING"]])
    server.freeze()
    try:
        with pytest.raises(Lost):
            await transport.block(["BLPOP", "nothing", 0.1], 0.1)
    finally:
        server.thaw()
    replies = [await transport.exchange([["ECHO", str(n)]]) for n in range(3)]
    await transport.close()

    assert replies == [["0"], ["1"], ["2"]]


@pytest.mark.slow
async def test_an_unexpected_error_does_not_end_the_worker(
    valkey_url: str, witness: crew.Witness
) -> None:
    """Checks a transport that raises a KeyError."""
    crew.app.connect_to(valkey_url)
    broken: list[str] = []

    class Transport(AsyncPoolTransport):
        async def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
            if len(broken) < 2 and commands[0][0] == "FCALL" and witness.lines():
                broken.append(str(commands[0]))
                raise KeyError("nobody foresaw this")
            return await super().exchange(commands, *how)

    options = WorkerOptions(queues=("crew",), concurrency=1, grace=1.0)
    worker = Worker(crew.app, options, transport=Transport(valkey_url))
    running = asyncio.create_task(worker.run())
    client = crew.app.client
    try:
        for n in range(4):
            handle = await crew.coroutine.enqueue_async(n=n)
            await wait_until_async(gone(client, handle.id), "it is done")
    finally:
        worker.stop()
        await running
        await crew.app.aclose()

    assert len(broken) == 2


@pytest.mark.slow
def test_a_connection_reset_during_the_handshake_counts_as_an_outage(
    redis_server: RedisServer,
) -> None:
    """Checks uvloop, on which the command line runs workers. No command is sent before the handshake is finished."""
    import uvloop

    url = redis_server.url.replace("/0", "/3")
    with redis.Redis.from_url(url) as there:
        there.set("where", "three")

    async def hammer() -> set[str]:
        transport = AsyncPoolTransport(url)
        began = time.monotonic()
        found: set[str] = set()
        # For three seconds, and longer where the resets let no exchange pass in that time.
        while (took := time.monotonic() - began) < 3 or (not found and took < 60):
            (reply,) = await transport.exchange([["GET", "where"]])
            if not isinstance(reply, Lost | Unsent):
                found.add(str(reply))
        await transport.close()
        return found

    stop = threading.Event()

    def reset() -> None:
        with redis_server.client() as client:
            while not stop.is_set():
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                time.sleep(0.001)

    resetting = threading.Thread(target=reset)
    resetting.start()
    try:
        found = uvloop.run(hammer())
    finally:
        stop.set()
        resetting.join()

    assert found == {"three"}


@pytest.mark.slow
async def test_no_job_loses_its_claim_in_an_outage_that_lasts_two_leases(
    start_redis: Callable[..., RedisServer], witness: crew.Witness
) -> None:
    """Checks two workers. The first one that reaches Redis must not end the claims of the second."""
    server = start_redis()
    crew.app.connect_to(server.url)
    options = WorkerOptions(queues=("crew",), concurrency=2, grace=10.0)
    workers = [Worker(crew.app, options) for _ in range(2)]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    handles = [await crew.sleeping.enqueue_async(3.5 * crew.LEASE) for _ in range(4)]
    await wait_until_async(lambda: len(witness.lines("begin")) == 4, "all run")
    server.freeze()
    try:
        loop = asyncio.get_running_loop()
        over = loop.time() + 2.2 * crew.LEASE
        await wait_until_async(lambda: loop.time() > over, "their leases are over")
    finally:
        server.thaw()
    client = crew.app.client
    await wait_until_async(emptied(client), "all are done", timeout=20)
    types = [event_types(client, handle.id) for handle in handles]
    for worker in workers:
        worker.stop()
    await asyncio.gather(*running)
    await crew.app.aclose()
    client.close()

    assert types == [["enqueued", "claimed", "succeeded"]] * 4


async def test_a_worker_extends_a_lease_more_often_after_the_setting_was_shortened(
    valkey_url: str, witness: crew.Witness
) -> None:
    """Checks a worker that started before the setting was changed. Its jobs do not die as poison."""
    worker, running = begin(valkey_url, grace=0.0)
    handle = await crew.sleeping.enqueue_async(60)
    await wait_until_async(lambda: witness.lines("begin"), "the job runs")

    crew.app.client.run(crew.app.client.calls.admin.configure("crew", {"lease_ms": 600}))

    await wait_until_async(
        lambda: worker._handlers.leases.interval == pytest.approx(0.2), "it has noticed"
    )
    worker.stop()
    await running
    await crew.app.aclose()
    assert handle.state() == "ready"
    crew.app.client.close()


async def test_no_running_job_is_given_back_to_its_queue_after_a_restart_of_redis_that_keeps_the_caps(
    start_redis: Callable[..., RedisServer],
) -> None:
    """Checks a restart after which the caps still count the claim. A needless rollback would use up a rate twice."""
    server = start_redis(appendonly="yes", appendfsync="always")
    with App(server.url) as app:
        begun = []

        @app.task(queue="mail", caps=[Cap(1)])
        async def send() -> None:
            begun.append(current_job().claim)

        worker = Worker(app, WorkerOptions(queues=("mail",), grace=1.0))
        running = asyncio.create_task(worker.run())
        for n in (1, 2):
            send.enqueue()
            await wait_until_async(lambda n=n: len(begun) == n, "it ran", timeout=10.0)  # type: ignore[misc]
            await wait_until_async(emptied(app.client, "mail"), "it is settled")
            server.kill()
            server.start()
        worker.stop()
        await running

        types = [each.event for each in log_of(app.client, "mail")]
    assert begun == [1, 1]
    assert types.count("epoch_started") >= 2
    assert "rolled_back" not in types


def test_a_call_waits_while_redis_refuses_writes_because_saving_to_disk_failed(
    start_redis: Callable[..., RedisServer],
) -> None:
    """Checks the error MISCONF, with which Redis answers each write after a failed save to disk.

    The call continues as soon as Redis accepts writes.
    """
    server = start_redis(save="3600 1")
    obstacle = server.directory / "dump.rdb"

    def save(control: redis.Redis, status: str) -> None:
        control.bgsave()
        wait_until(
            lambda: control.info("persistence")["rdb_last_bgsave_status"] == status,
            f"saving ends with {status}",
        )

    told: list[str] = []
    with (
        server.client(decode_responses=True) as control,
        Client(server.url, patience=Patience(unsent=30.0)) as client,
    ):
        (before,) = client.run(client.calls.enqueue.many([crew.coroutine.job(n=1)])).ids
        obstacle.mkdir()
        save(control, "err")
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            control.set("any", "thing")
        calling = threading.Thread(
            target=lambda: told.extend(
                client.run(client.calls.enqueue.many([crew.coroutine.job(n=2)])).ids
            )
        )
        calling.start()
        wait_until(lambda: _refused(control) >= 2, "the call is refused, and made again")
        assert told == []
        obstacle.rmdir()
        save(control, "ok")
        calling.join(20)
        assert set(client.run(client.calls.reads.snapshot("crew"))["jobs"]) == {before, *told}
        assert len(told) == 1


def _refused(control: redis.Redis) -> int:
    """Return how often Redis has answered MISCONF to the client, without the answer to the test's own command."""
    said = control.info("errorstats").get("errorstat_MISCONF", {"count": 0})
    return int(said["count"]) - 1
