"""Workers and the mirror in a cluster while a slot moves, or while a shard has no primary."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator

import pytest

from rq_core import durable
from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.errors import ServerUnavailable
from rq_core.model.keys import queue_keys, queues_key
from rq_core.process.supervisor import meet
from rq_core.worker import Worker, WorkerOptions, startup
from sql_audit.proof.result import QueueResult
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit.clusters import FAILOVER_S, RedisCluster
from tests.kit.mirroring import mirroring
from tests.kit.servers import engines
from tests.kit.wait import wait_until_async
from tests.kit.working import working

GAP_S = 2.0
"""Longest time, in seconds, in which a healthy shard may run no job of a queue. If the primary of a shard dies, the
shard runs no job for about 2 s at least: NODE_TIMEOUT_MS and an election."""


class Load:
    """Producers of several queues, and the records that their jobs write."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.acknowledged: set[str] = set()
        self.ran: Counter[str] = Counter()
        self.times: dict[str, list[float]] = {}
        self.refused = 0
        app.task(queue="any", name="note")(self.note)

    def declare(self, *queues: str) -> None:
        """Declare these queues in the worker's app. Producers enqueue by name, and declare none."""
        for queue in queues:
            self.app.queue(queue)

    async def note(self, queue: str, key: str) -> None:
        self.ran[key] += 1
        self.times.setdefault(queue, []).append(time.monotonic())
        await asyncio.sleep(0.002)

    async def produce(self, queue: str) -> None:
        """Enqueue jobs one by one until this asyncio task is cancelled."""
        for number in itertools.count():
            key = f"{queue}-{number}"
            try:
                await self.app.enqueue_async(queue, "note", {"queue": queue, "key": key})
                self.acknowledged.add(key)
            except ServerUnavailable:
                self.refused += 1
            await asyncio.sleep(0.02)

    @contextlib.asynccontextmanager
    async def producing(self, *queues: str) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.produce(queue)) for queue in queues]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def left(self) -> set[str]:
        return self.acknowledged - set(self.ran)

    def twice(self) -> dict[str, int]:
        return {key: times for key, times in self.ran.items() if times > 1}

    def gap(self, queue: str, since: float, until: float) -> float:
        """Return the longest time in seconds in which no job of the queue ran."""
        moments = [since, *(at for at in self.times.get(queue, []) if since < at < until), until]
        return max(b - a for a, b in itertools.pairwise(moments))


@pytest.fixture
def load(cluster: RedisCluster) -> Iterator[Load]:
    app = App(cluster.url)
    yield Load(app)
    app.close()


def check_log(url: str, *queues: str, lossy: str | None = None) -> dict[str, QueueResult]:
    """Assert that `audit verify` proves the log of every queue.

    Redis may have forgotten events of the queue ``lossy``, and of no other queue.
    """
    database = Database(url)
    try:
        result = verify(database)
    finally:
        database.close()
    assert set(queues) == set(result.queues)
    for found in result.queues.values():
        assert found.verdict == "holds", (found.verdict, found.violations)
        assert found.orphans == 0 or found.queue == lossy
    return result.queues


async def test_one_worker_serves_queues_of_all_shards(cluster: RedisCluster, load: Load) -> None:
    queues = [name for names in cluster.queues(2).values() for name in names]
    for queue in queues:
        for number in range(30):
            key = f"{queue}-{number}"
            await load.app.enqueue_async(queue, "note", {"queue": queue, "key": key})
            load.acknowledged.add(key)

    worker = Worker(load.app, WorkerOptions(queues=tuple(queues), burst=True, concurrency=8))
    async with asyncio.timeout(30):
        await worker.run()
    await load.app.connections.aclose()

    assert dict.fromkeys(load.acknowledged, 1) == load.ran


@pytest.mark.slow
@pytest.mark.alone
async def test_an_idle_worker_is_woken_on_every_shard(cluster: RedisCluster, load: Load) -> None:
    """Checks that the worker waits for each queue by a separate call. One call cannot wait for keys in several cluster
    slots."""
    queues = [names[0] for names in cluster.queues(1).values()]
    load.declare(*queues)
    async with working(load.app, queues=queues):
        await wait_until_async(lambda: _waiting(cluster, 3), "the worker waits on all shards")
        began = time.monotonic()
        for queue in queues:
            await load.app.enqueue_async(queue, "note", {"queue": queue, "key": queue})
        await wait_until_async(lambda: len(load.ran) == 3, "all have run")

        # Without a token they would have waited for the next look, after three seconds at least.
        assert time.monotonic() - began < 2.5


@pytest.mark.slow
async def test_a_stopping_worker_lets_jobs_of_other_queues_finish_after_a_job_has_ended(
    cluster: RedisCluster, load: Load
) -> None:
    """Checks a queue without a settlement to report. After an error the worker would give back the jobs of all
    queues."""
    one, other, _ = (names[0] for names in cluster.queues(1).values())
    begun, ended = [], []

    @load.app.task(queue=one)
    async def lasts(seconds: float) -> None:
        begun.append(seconds)
        await asyncio.sleep(seconds)
        ended.append(seconds)

    load.declare(one, other)
    async with working(load.app, queues=(one, other), grace=10.0):
        await lasts.enqueue_async(0.3)
        await lasts.with_options(queue=other).enqueue_async(1.0)
        await wait_until_async(lambda: len(begun) == 2, "both run")

    assert ended == [0.3, 1.0]


@pytest.mark.slow
async def test_a_parent_joins_children_of_other_shards_while_its_slot_moves(
    cluster: RedisCluster, load: Load, sqlite_url: str
) -> None:
    queues = home, *others = [names[0] for names in cluster.queues(1).values()]
    sums: list[int] = []

    @load.app.task(queue="any")
    async def part(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    @load.app.task(queue=home)
    async def join() -> None:
        calls = [part.with_options(queue=others[n % 2]).call(n) for n in range(8)]
        sums.append(sum((await durable().map("parts", calls)).values()))

    load.declare(*queues)
    key = queue_keys(home)("meta")
    with mirroring(cluster.url, sqlite_url):
        async with working(load.app, queues=queues, concurrency=6):
            for _ in range(2):
                await join.enqueue_async()
                target = next(s for s in cluster.primaries() if s is not cluster.primary_of(key))
                for _step in cluster.migrating(key, target):
                    await asyncio.sleep(0.01)
            await wait_until_async(lambda: len(sums) == 2, "both parents have joined", timeout=40)

    assert [28, 28] == sums
    check_log(sqlite_url, *queues)


def _waiting(cluster: RedisCluster, count: int) -> bool:
    blocked = 0
    for server in cluster.primaries():
        with server.client() as client:
            blocked += client.info("clients")["blocked_clients"]
    return blocked >= count


@pytest.mark.slow
async def test_slots_that_move_under_load_lose_no_job(
    cluster: RedisCluster, load: Load, sqlite_url: str
) -> None:
    """Checks a cluster slot that moves to another node and back under calls of producers, a worker and a mirror.

    Redis answers these calls with TRYAGAIN, and later with MOVED.
    """
    queues = [names[0] for names in cluster.queues(1).values()]
    moved = queues[0]
    key = queue_keys(moved)("meta")
    with mirroring(cluster.url, sqlite_url):
        load.declare(*queues)
        async with working(load.app, queues=queues, concurrency=6), load.producing(*queues):
            await wait_until_async(lambda: len(load.ran) > 100, "the load has begun")
            for _ in range(2):
                others = [s for s in cluster.primaries() if s is not cluster.primary_of(key)]
                for _step in cluster.migrating(key, others[0]):
                    # Calls come between any two keys.
                    before = len(load.acknowledged)
                    await wait_until_async(
                        lambda before=before: len(load.acknowledged) > before + 3,  # type: ignore[misc]
                        "other queues go on",
                    )
                done = len(load.times[moved])
                await wait_until_async(
                    lambda done=done: len(load.times[moved]) > done + 10,  # type: ignore[misc]
                    "jobs of the queue that has moved run",
                )
        async with working(load.app, queues=queues, concurrency=6):
            await wait_until_async(lambda: not load.left(), lambda: f"all ran; left: {load.left()}")

    assert load.refused == 0
    assert load.twice() == {}
    log = check_log(sqlite_url, *queues)
    # Another node has another history, as far as it can tell: each move begins an epoch, and none forgot anything.
    moves = log[moved].losses
    assert [0] * 2 == [loss.orphaned for loss in moves]
    assert all("a slot that moved" in loss.says for loss in moves)
    assert [] == [loss for queue in queues[1:] for loss in log[queue].losses]


@pytest.mark.parametrize("engine", engines()[:1], ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("frozen", "with_list"),
    [(True, False), (False, False), (True, True)],
    ids=["frozen", "down", "frozen-with-the-list"],
)
@pytest.mark.slow
async def test_a_worker_that_starts_while_a_shard_is_down_serves_the_other_shards(
    cluster: RedisCluster,
    load: Load,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    frozen: bool,
    with_list: bool,
) -> None:
    """Checks that the worker serves the reachable queues at once, and the shard's queue after the outage.

    With ``with_list``, the shard also has the list of queues. All queues exist before the outage, since no queue can be
    listed during the outage.
    """
    caplog.set_level("INFO")
    monkeypatch.setattr(startup, "START_WAIT_S", 45.0)
    monkeypatch.setattr(startup, "LOOK_S_MAX", 0.1)
    queues = [names[0] for names in cluster.queues(1).values()]
    lists = cluster.primary_of(queues_key())
    victim = lists if with_list else next(s for s in cluster.primaries() if s is not lists)
    away = next(q for q in queues if cluster.primary_of(queue_keys(q)("meta")) is victim)
    spared = [queue for queue in queues if queue != away]
    load.declare(*queues)
    with Client(cluster.url) as client:
        for queue in queues:
            client.run(client.calls.delivery.handshake(queue))
    shard = cluster.shard_of(victim)
    for server in shard:
        server.freeze() if frozen else server.kill()
    try:
        async with working(load.app, queues=queues):
            for queue in spared:
                await load.app.enqueue_async(queue, "note", {"queue": queue, "key": queue})
            await wait_until_async(lambda: load.ran.keys() == {*spared}, "the others run")
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                loop = asyncio.get_running_loop()
                met, _ = await loop.run_in_executor(pool, meet, load.app, queues)
            assert met.queues == spared
            assert f"no jobs of queue {away} are run until its shard answers" in caplog.text
            for server in shard:
                server.thaw() if frozen else server.start()
            await wait_until_async(
                lambda: f"queue {away} is served from now on" in caplog.text,
                "it is met",
                timeout=30,
            )
            # The replica may take over once more, without the jobs that it has not got yet: one of several will do.
            numbers = itertools.count()

            async def one_ran() -> bool:
                key = f"{away}-{next(numbers)}"
                await load.app.enqueue_async(away, "note", {"queue": away, "key": key})
                return any(ran.startswith(f"{away}-") for ran in load.ran)

            await wait_until_async(one_ran, "its jobs run, too")
    finally:
        if frozen:
            for server in shard:
                server.thaw()


@pytest.mark.alone
@pytest.mark.slow
async def test_a_shard_without_a_primary_delays_no_other_shard(
    cluster: RedisCluster, load: Load, sqlite_url: str
) -> None:
    """Checks that only the jobs of this shard wait for the failover.

    A process that starts meanwhile can enqueue jobs on the other shards.
    """
    queues = [names[0] for names in cluster.queues(1).values()]
    victim = cluster.primaries()[0]
    struck = next(q for q in queues if cluster.primary_of(queue_keys(q)("meta")) is victim)
    spared = [queue for queue in queues if queue != struck]

    def others(keys: Iterable[str]) -> set[str]:
        return {key for key in keys if not key.startswith(f"{struck}-")}

    with mirroring(cluster.url, sqlite_url):
        load.declare(*queues)
        async with working(load.app, queues=queues, concurrency=1), load.producing(*queues):
            await wait_until_async(lambda: len(load.ran) > 100, "the load has begun")
            began = time.monotonic()

            promoted = cluster.strike(victim)
            # A process that begins now: the list of all queues may have been on that shard.
            newcomer = App(cluster.url)
            await newcomer.enqueue_async(spared[0], "note", {"queue": spared[0], "key": "new"})
            await newcomer.connections.aclose()
            assert time.monotonic() - began < GAP_S
            await wait_until_async(promoted, "the replica takes over", timeout=FAILOVER_S)

            over = time.monotonic()
            done = len(load.times[struck])
            await wait_until_async(
                lambda: len(load.times[struck]) > done + 10, "the shard's jobs run again"
            )
        load.declare(*queues)
        async with working(load.app, queues=queues, concurrency=6):
            await wait_until_async(
                lambda: not others(load.left()), lambda: f"all ran; left: {load.left()}"
            )

    for queue in spared:
        assert load.gap(queue, began, over) < GAP_S, (queue, over - began)
    # What the primary had acknowledged and not yet replicated, Redis may have forgotten.
    assert set() == others(load.twice())
    log = check_log(sqlite_url, *queues, lossy=struck)
    (loss,) = log[struck].losses
    assert loss.orphaned or "a replica took the primary's place" in loss.says
    assert [] == [loss for queue in spared for loss in log[queue].losses]
