"""The costs of each operation, as counts. budgets.toml has the limit of each count."""

import asyncio
import cProfile
import functools
import gc
import pstats
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis
import redis.utils

from rq_core import App
from rq_core.connections.async_connection import AsyncConnection
from rq_core.connections.transport import PoolTransport
from rq_core.model.job import Claim, NewJob
from rq_core.protocol.calls import claims
from rq_core.worker import Worker, WorkerOptions
from tests.kit.processes import ROOT
from tests.kit.seed import WORKER, Seed
from tests.kit.tally import Tally, calls_of
from tests.kit.wait import wait_until
from tests.rigs import budgets

ARGS = '{"number":12345,"text":"0123456789012345678901234567890123456789"}'


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url) as made:
        # Its wake token is there, and each kind of call has its slot.
        made.enqueue("first")
        made.complete(*made.claim().jobs)
        yield made


def jobs(seed: Seed, name: str, count: int) -> list[NewJob]:
    # Ids as long as those that are made by default.
    return [seed.job(f"{name}{n:0{32 - len(name)}}", args_json=ARGS) for n in range(count)]


def running(seed: Seed, name: str, count: int) -> list[Claim]:
    seed.enqueue(*jobs(seed, name, count))
    return list(seed.claim(count).jobs)


def test_the_memory_of_a_waiting_job_is_within_its_budget(seed: Seed) -> None:
    """Checks the growth of ``used_memory`` per job, with Redis' hash tables and the allocator's rounding."""
    count = 20_000
    seed.attach()
    before = seed.control.info("memory")["used_memory"]
    seed.enqueue(*jobs(seed, "waits", count))

    grown = seed.control.info("memory")["used_memory"] - before
    budgets.check("redis_bytes", "waiting_job", grown / count)


SETTLING: dict[str, Callable[[Seed, Sequence[Claim]], object]] = {
    "complete": lambda seed, held: seed.complete(*held),
    "extend": lambda seed, held: seed.extend(held),
    "fail.retry": lambda seed, held: seed.fail(*held, delay_ms=1_000),
    "fail.final": lambda seed, held: seed.fail(*held, verdict="final"),
    "rollback": lambda seed, held: seed.rollback(*held),
}


@pytest.mark.parametrize("size", [1, 10, 100])
def test_redis_calls_from_the_enqueue_to_the_end_of_a_job_are_within_their_budgets(
    seed: Seed, size: int
) -> None:
    for name in ("warm", "measured"):
        new = jobs(seed, name, size)
        enqueue = calls_of(seed.control, lambda new=new: seed.enqueue(*new))
        tally = Tally(seed.control)
        with tally.counting():
            held = seed.claim(size).jobs
        assert len(held) == size
        complete = calls_of(seed.control, lambda held=held: seed.complete(*held))

    budgets.check("redis_calls", f"enqueue.{size}", enqueue)
    budgets.check("redis_calls", f"claim.{size}", tally.calls)
    budgets.check("redis_calls", f"complete.{size}", complete)


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("how", sorted(set(SETTLING) - {"complete"}))
def test_redis_calls_for_lease_extensions_failures_and_rollbacks_are_within_their_budgets(
    seed: Seed, how: str, size: int
) -> None:
    SETTLING[how](seed, running(seed, "warm", size))
    held = running(seed, "measured", size)

    cost = calls_of(seed.control, lambda: SETTLING[how](seed, held))

    budgets.check("redis_calls", f"{how}.{size}", cost)


@pytest.mark.parametrize("size", [1, 100])
def test_redis_calls_of_a_cancellation_are_within_their_budget(seed: Seed, size: int) -> None:
    seed.cancel("first")
    new = jobs(seed, "measured", size)
    seed.enqueue(*new)

    cost = calls_of(seed.control, lambda: seed.cancel(*(job.id for job in new)))

    budgets.check("redis_calls", f"cancel.{size}", cost)


def test_redis_calls_of_a_claim_that_finds_no_job_are_within_their_budget(seed: Seed) -> None:
    seed.claim()

    budgets.check("redis_calls", "claim.empty", calls_of(seed.control, seed.claim))


@pytest.mark.parametrize("size", [1, 100])
def test_bytes_sent_are_within_their_budgets(seed: Seed, size: int) -> None:
    asked = bytes_in(seed, lambda: None)
    new = jobs(seed, "measured", size)
    held: list[Claim] = []

    budgets.check(
        "bytes_sent", f"enqueue.{size}", bytes_in(seed, lambda: seed.enqueue(*new)) - asked
    )
    budgets.check(
        "bytes_sent",
        f"claim.{size}",
        bytes_in(seed, lambda: held.extend(seed.claim(size).jobs)) - asked,
    )
    assert len(held) == size
    budgets.check(
        "bytes_sent", f"complete.{size}", bytes_in(seed, lambda: seed.complete(*held)) - asked
    )


def bytes_in(seed: Seed, work: Callable[[], object]) -> int:
    """Return how many bytes the server receives during the work. The command that asks for the number is included."""
    before: Any = seed.control.info("stats")
    work()
    after: Any = seed.control.info("stats")
    return int(after["total_net_input_bytes"] - before["total_net_input_bytes"])


class CountingTransport(PoolTransport):
    """A transport that counts its round trips."""

    trips = 0

    def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        self.trips += 1
        return super().exchange(commands, *how)


def test_round_trips_are_within_their_budgets(valkey_url: str) -> None:
    transport = CountingTransport(valkey_url)
    with Seed(valkey_url, transport=transport) as seed:
        seed.enqueue("zeroth")
        (loading,) = seed.claim().jobs  # A new server gets the scripts now.
        seed.client.run(claims.complete(seed.queue, WORKER, [(loading.id, loading.fence)]))
        seed.enqueue("first")
        (held,) = seed.claim().jobs
        for size in (1, 1_000, 10_000):
            transport.trips = 0
            seed.enqueue(*jobs(seed, f"j{size}-", size))
            budgets.check("round_trips", f"enqueue.{size}", transport.trips)
        transport.trips = 0
        seed.client.run(
            seed.client.calls.delivery.carry_out(
                [
                    claims.complete(seed.queue, WORKER, [(held.id, held.fence)]),
                    seed.claim_call(10),
                ]
            )
        )
        budgets.check("round_trips", "turn", transport.trips)


# Python.


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    app = App(valkey_url)

    @app.task(queue="budgets", name="async")
    async def on_the_loop(number: int, text: str) -> None:
        """Do nothing, on the event loop."""

    @app.task(queue="budgets", name="threads")
    def in_a_thread(number: int, text: str) -> None:
        """Do nothing, in a thread."""

    yield app
    app.close()


def calls_per_job(count: int, work: Callable[[], object]) -> float:
    """Return the number of calls of functions, in Python and built in, per job."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return calls_in(profile) / count


def calls_in(profile: cProfile.Profile) -> float:
    stats: Any = pstats.Stats(profile)
    return float(stats.total_calls)


_SYSTEM_CALL = re.compile(
    r"<method '(send|sendall|recv|recv_into|poll)' of '(_socket.socket|select.e?poll)' objects>"
)


def system_calls_in(profile: cProfile.Profile) -> int:
    """Return the number of system calls that send, receive or poll."""
    stats: Any = pstats.Stats(profile)
    return sum(
        facts[1] for (_, _, name), facts in stats.stats.items() if _SYSTEM_CALL.fullmatch(name)
    )


def fill(app: App, kind: str, count: int) -> None:
    task = app.tasks[kind]
    app.enqueue_many(task.job(number=n, text="x" * 40) for n in range(count))


def test_calls_of_a_producer_are_within_their_budgets(app: App) -> None:
    task = app.tasks["async"]
    fill(app, "async", 1_000)

    def one_by_one() -> None:
        for n in range(100):
            task.enqueue(number=n, text="x" * 40)

    one_by_one()

    bulk = calls_per_job(1_000, lambda: fill(app, "async", 1_000))
    one = cProfile.Profile()
    one.runcall(one_by_one)

    budgets.check("python_calls", "enqueue.bulk", bulk)
    budgets.check("python_calls", "enqueue.one", calls_in(one) / 100)
    budgets.check("system_calls", "enqueue.one", system_calls_in(one) / 100)


DRAINED = 1_000
PLACES = 100
"""Number of jobs that the worker runs at once. All of these jobs end in the same turn: the call in which a worker
settles and claims."""


class Gate:
    """A barrier that releases ``PLACES`` coroutines at once."""

    def __init__(self) -> None:
        self._came = 0
        self._open: asyncio.Future[None]

    def pass_together(self) -> asyncio.Future[None]:
        if self._came % PLACES == 0:
            self._open = asyncio.get_running_loop().create_future()
        self._came += 1
        if self._came % PLACES == 0:
            self._open.set_result(None)
        return self._open


def counted(url: str, kind: str) -> float:
    """Return the number of calls per job while a worker drains a queue.

    Only calls in the event loop's thread count. The event loop is asyncio's, which is written in Python, so that its
    calls count, too. redis-py reads the metadata of its package at each connection. These calls are not counted: they
    would be ten per job.
    """
    redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)
    gate, barrier = Gate(), threading.Barrier(PLACES)
    with App(url) as app:

        @app.task(queue="budgets", name="async")
        async def on_the_loop(number: int, text: str) -> None:
            await gate.pass_together()

        @app.task(queue="budgets", name="threads")
        def in_a_thread(number: int, text: str) -> None:
            barrier.wait()

        fill(app, kind, DRAINED)
        drain(app)
        fill(app, kind, DRAINED)
        return calls_per_job(DRAINED, lambda: drain(app))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", "threads"])
def test_calls_of_a_worker_are_within_their_budget(valkey_url: str, kind: str) -> None:
    """Checks a worker whose handlers wait for each other, so that all running jobs end together.

    A turn settles the jobs that have ended, and costs calls of its own. Without the wait, the machine's load would
    decide how many jobs share a turn. The worker runs in a separate process. After many other tests, one process made
    up to three times as many calls.
    """
    program = f"from {counted.__module__} import counted; print(counted({valkey_url!r}, {kind!r}))"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )  # fmt: skip

    budgets.check("python_calls", f"drain.{kind}", float(ran.stdout))


PACED = 30


def pace(worker: Worker, enqueue: Callable[[], object], jobs: int) -> None:
    """Enqueue jobs one by one. Before each job, and at the end, wait until the worker is idle."""
    with redis.Redis.from_url(worker.app.client.url) as control:

        def idle() -> bool:
            clients: Any = control.info("clients")
            return worker.stats.completed == enqueued and clients["blocked_clients"] == 1

        enqueued = worker.stats.completed
        for _ in range(jobs):
            wait_until(idle, "the worker waits for a token")
            enqueue()
            enqueued += 1
        wait_until(idle, "the worker waits again")


def test_calls_of_an_idle_worker_are_within_their_budgets(app: App) -> None:
    """Counts the calls between two waits for a wake token, for one job at a time, on asyncio's event loop.

    The job with the fewest calls is compared with the budget. The counts of other jobs include work that a worker does
    every second.
    """
    enqueue = functools.partial(app.tasks["async"].enqueue, number=1, text="x" * 40)
    worker = Worker(app, WorkerOptions(queues=("budgets",), concurrency=10))

    async def count(jobs: int) -> tuple[float, int]:
        profile = cProfile.Profile()
        profile.enable()
        # In a thread, whose calls are not counted.
        await asyncio.to_thread(pace, worker, enqueue, jobs)
        profile.disable()
        return calls_in(profile), system_calls_in(profile)

    async def run() -> tuple[float, int]:
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(pace, worker, enqueue, 5)
        jobs = [await count(1) for _ in range(PACED)]
        none = [await count(0) for _ in range(PACED)]
        worker.stop()
        await running
        calls, system_calls = (
            min(one) - min(other)
            for one, other in zip(zip(*jobs, strict=True), zip(*none, strict=True), strict=True)
        )
        return calls, int(system_calls)

    calls, system_calls = asyncio.run(run())

    budgets.check("python_calls", "idle.async", calls)
    budgets.check("system_calls", "idle.async", system_calls)


def test_calls_between_the_wake_token_and_the_handler_are_within_their_budget(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts the calls of an idle worker from the wake token until the handler begins, on asyncio's event loop.

    These calls and Redis' claim are what the job waits for. The job with the fewest calls is compared with the budget.
    """
    profiles: list[cProfile.Profile] = []

    @app.task(queue="budgets", name="awaited")
    async def awaited() -> None:
        profiles[-1].disable()

    receive = AsyncConnection.data_received

    def receive_counted(connection: AsyncConnection, data: bytes) -> None:
        if b":wake" in data:
            profiles.append(cProfile.Profile())
            profiles[-1].enable()
        receive(connection, data)

    monkeypatch.setattr(AsyncConnection, "data_received", receive_counted)
    worker = Worker(app, WorkerOptions(queues=("budgets",), concurrency=10))

    async def run() -> None:
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(pace, worker, awaited.enqueue, PACED)
        worker.stop()
        await running

    asyncio.run(run())

    assert len(profiles) == PACED
    budgets.check("python_calls", "wake.async", min(map(calls_in, profiles)))


@pytest.mark.slow
def test_commands_tasks_and_memory_of_a_worker_are_within_their_budgets(app: App) -> None:
    with redis.Redis.from_url(app.client.url) as control:
        fill(app, "async", DRAINED)
        drain(app)
        fill(app, "async", DRAINED)
        gc.collect()
        blocks = sys.getallocatedblocks()
        before = sent(control)
        tasks = drain(app)
        commands = sent(control) - before
        gc.collect()
        left = sys.getallocatedblocks() - blocks

    budgets.check("drain", "commands", commands)
    budgets.check("drain", "tasks", tasks)
    # Less than one per job is noise.
    budgets.check("drain", "blocks_left_per_job", max(1.0, left / DRAINED))


def sent(control: redis.Redis) -> int:
    """Return how many script calls and waits for wake tokens Redis has counted."""
    stats: Any = control.info("commandstats")
    names = ("fcall", "evalsha", "blpop", "bzmpop", "blmove", "blmpop")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names)


def drain(app: App) -> int:
    """Run a worker until the queue is empty. Return how many tasks the event loop created."""
    made = 0

    async def run() -> None:
        def count(loop: Any, coroutine: Any, **how: Any) -> asyncio.Task[Any]:
            nonlocal made
            made += 1
            return asyncio.Task(coroutine, loop=loop, **how)

        asyncio.get_running_loop().set_task_factory(count)
        worker = Worker(app, WorkerOptions(queues=("budgets",), concurrency=PLACES, burst=True))
        await worker.run()
        await app.connections.aclose()
        assert worker.stats.completed in (0, DRAINED)

    asyncio.run(run())
    return made


# The table.


def test_the_error_of_an_exceeded_budget_names_the_budget_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(budgets.COUNTED, raising=False)
    most = budgets.table()["redis_calls"]["claim.100"]

    budgets.check("redis_calls", "claim.100", most)
    with pytest.raises(AssertionError, match=r"redis_calls 'claim.100' is .*budgets.toml"):
        budgets.check("redis_calls", "claim.100", most + 1)
    with pytest.raises(AssertionError, match="no budget: add it"):
        budgets.check("redis_calls", "unheard of", 1)


def test_tightening_lowers_the_budgets_that_were_measured_and_keeps_the_other_budgets() -> None:
    text = '# why\n[a]\nslack = 0.1\n"x" = 50\n"y" = 7\n'

    assert (
        budgets.tightened(text, {("a", "x"): 20}) == '# why\n[a]\nslack = 0.1\n"x" = 22\n"y" = 7\n'
    )
