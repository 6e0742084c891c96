"""A server that has reached maxmemory. An enqueue call is refused as a whole, and workers still run the server's
jobs."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable

import pytest
from click.testing import CliRunner
from sqlalchemy import text

from rq_core import App, DeadJob, GiveUp, QueueFull
from rq_core.cli.root import root
from rq_core.doctor import examine
from rq_core.protocol.calls import claims
from rq_core.worker import Worker, WorkerOptions
from sql_audit.mirror.redis_access import open_source
from sql_audit.mirror.service import run_mirror
from sql_audit.store.connection.database import Database
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until

SIZE = 10_000
done: list[int] = []
told: list[str] = []


async def take(n: int, data: str) -> None:
    done.append(n)


def refuse(data: str) -> None:
    raise GiveUp("no")


def bury(job: DeadJob) -> None:
    told.append(job.id)


@pytest.fixture
def server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    done.clear()
    told.clear()
    return start_redis(maxmemory="10mb", appendonly="yes")


@pytest.fixture
async def app(server: RedisServer) -> AsyncIterator[App]:
    made = make_app(server.url)
    yield made
    await made.aclose()


def make_app(url: str) -> App:
    app = App(url)
    app.task(queue="full")(take)
    app.task(queue="full", on_dead=bury)(refuse)
    return app


@pytest.mark.slow
async def test_a_full_server_refuses_enqueues_and_workers_run_its_jobs(
    app: App, server: RedisServer, audit_url: str
) -> None:
    send = app.tasks["take"]
    mirrored = _mirroring(server.url, audit_url)
    app.client.run(app.client.calls.admin.configure("full", {"lease_ms": 1_000}))
    mirrored()
    mortal = app.tasks["refuse"].enqueue("x" * SIZE)
    with pytest.raises(QueueFull) as caught:
        app.enqueue_many(send.job(n, "x" * SIZE) for n in range(10_000))
    accepted = caught.value.accepted.ids  # type: ignore[attr-defined]
    while True:
        try:
            accepted += (send.enqueue(len(accepted), "x" * SIZE).id,)
        except QueueFull:
            break

    # It is full: nothing is half there, and everybody can look.
    before = app.client.run(app.client.calls.reads.snapshot("full"))
    for enqueue in (
        lambda: app.enqueue_many([send.job(1, "x"), send.job(2, "y")]),
        lambda: app.enqueue("full", "take", {"n": 1, "data": ""}),
    ):
        with pytest.raises(QueueFull, match="enqueue again later"):
            enqueue()
    with pytest.raises(QueueFull):
        await send.enqueue_async(1, "x")
    assert before == app.client.run(app.client.calls.reads.snapshot("full"))
    assert set(before["jobs"]) == {*accepted, mortal.id}
    result = CliRunner().invoke(root, ["doctor", "--redis", server.url])
    assert result.exit_code == 0, result.output

    # What drains it goes on: claims, extensions, expiry, settlements, and the mirror with its trim.
    client = app.client
    first, second = client.run(claims.claim("full", "w-dying", 2)).jobs
    extended = client.run(claims.extend("full", "w-dying", [(first.id, first.fence)]))
    assert extended.lost == ()
    mirrored()
    before_trim = len(client.run(client.calls.reads.snapshot("full"))["outbox"])
    assert before_trim == 1
    with pytest.raises(QueueFull):
        send.enqueue(1, "x" * SIZE)
    wait_until(
        lambda: client.run(client.calls.delivery.handshake("full")).now_ms > _lease_end(app),
        "the leases are over",
    )
    while not _empty(app):  # What was lost is tried again a little later than a burst may last.
        await Worker(app, WorkerOptions(queues=("full",), burst=True)).run()
        mirrored()

    # It takes jobs again, and those who were told later are told.
    late = send.enqueue(-1, "x" * SIZE)
    await Worker(app, WorkerOptions(queues=("full",), burst=True)).run()
    mirrored()
    assert examine(client.run(client.calls.reads.snapshot("full"))) == []
    # At least once: a worker that stops between telling and noting it leaves it to the next.
    assert set(told) == {mortal.id}
    assert {-1, *range(len(accepted))} >= set(done)
    assert {first.id, second.id, late.id} <= _succeeded(audit_url) | {mortal.id}
    assert {*accepted, late.id} <= _succeeded(audit_url)


def _mirroring(url: str, audit_url: str) -> Callable[[], int]:
    def once() -> int:
        source = open_source(url, "rqc")
        try:
            return run_mirror(source, audit_url, stop=threading.Event(), once=True).events
        finally:
            source.close()

    return once


def _lease_end(app: App) -> float:
    return max(app.client.run(app.client.calls.reads.snapshot("full"))["leases"].values())


def _empty(app: App) -> bool:
    counts = app.client.run(app.client.calls.reads.counts("full"))
    return not counts.running and not counts.scheduled and not sum(counts.ready.values())


def _succeeded(url: str) -> set[str]:
    database = Database(url)
    try:
        with database.readers.connect() as connection:
            rows = connection.execute(text("SELECT job_id FROM job_event WHERE type = 'succeeded'"))
            return {row[0] for row in rows}
    finally:
        database.close()
