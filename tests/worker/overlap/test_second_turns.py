"""A worker that sends a second turn before Redis has answered the first. A turn is one call that settles and claims.

The tests check when a second turn is worth its cost, and how many jobs it may claim.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from rq_core.app.app import App
from rq_core.connections.transport import AsyncPoolTransport
from rq_core.protocol.engine.plan import Lost
from rq_core.scripts.script import function
from rq_core.worker import Worker, WorkerOptions
from tests.kit.transports import is_claim
from tests.kit.wait import wait_until_async
from tests.kit.working import at_work


class Ender(asyncio.Semaphore):
    """A semaphore for which each running job waits. Each release ends one job."""

    begun = ended = 0

    async def hold(self) -> None:
        self.begun += 1
        await self.acquire()
        self.ended += 1


def limit_of(claim: Sequence[Any]) -> int:
    """Return the largest number of jobs that a claim may take."""
    script = function("turn" if "_turn_" in claim[1] else "claim")
    return int(claim[3 + len(script.keys) + script.args.index("limit")])


class Gate(AsyncPoolTransport):
    """A transport that holds back the claims of a queue while ``shut`` returns True, and records their limits."""

    holds = "q"
    shut: Callable[[], bool]

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.limits: list[int] = []
        self._cuts = 0

    def cut(self) -> None:
        """Drop the claims that are held back, so that Redis never gets them."""
        self._cuts += 1

    @property
    def held(self) -> int:
        return len(self.limits)

    async def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        claims = [command for command in commands if self._is_held(command)]
        if self.shut() and claims:
            self.limits.append(sum(map(limit_of, claims)))
            cuts = self._cuts
            await wait_until_async(lambda: not self.shut() or self._cuts > cuts, "the gate is open")
            if self._cuts > cuts:
                return [Lost("cut by the test")] * len(commands)
        return await super().exchange(commands, *how)

    def _is_held(self, command: Sequence[Any]) -> bool:
        return is_claim(command) and f"{{{self.holds}}}" in str(command[3])


@contextlib.asynccontextmanager
async def full_worker(
    app: App, valkey_url: str, *, blocks: float = 0.0
) -> AsyncIterator[tuple[Worker, Gate, Ender]]:
    """Yield a worker that runs 32 jobs, its gate, and the semaphore that ends its jobs. More jobs wait in the queue.

    The gate is shut: no claim reaches Redis. Each job blocks the event loop for ``blocks`` seconds when it begins.
    """
    ender = Ender(0)

    @app.task(queue="q")
    async def runs() -> None:
        time.sleep(blocks)  # noqa: ASYNC251 - that is the point
        await ender.hold()

    app.enqueue_many(runs.job() for _ in range(100))
    gate = Gate(valkey_url)
    gate.shut = lambda: False
    worker = Worker(app, WorkerOptions(queues=("q",), concurrency=32), transport=gate)
    async with at_work(worker):
        await wait_until_async(lambda: ender.begun == 32, "all run")
        gate.shut = lambda: True
        try:
            yield worker, gate, ender
        finally:
            gate.shut = lambda: False
            for _ in range(100):
                ender.release()


async def take_turns(ender: Ender, reached: Callable[[], int], *ends: int) -> None:
    """For each number N in ``ends``, end N jobs, and wait until the worker has sent a turn for them."""
    for turns, jobs in enumerate(ends, 1):
        for _ in range(jobs):
            ender.release()
        await wait_until_async(
            lambda turns=turns: reached() == turns, f"{turns} turns are under way"
        )  # type: ignore[misc]


async def test_while_one_exchange_is_under_way_a_worker_begins_no_second_exchange_for_only_a_few_ended_jobs(
    app: App, valkey_url: str
) -> None:
    """Checks the number of turns. One more turn costs Redis as much as tens of jobs in a larger turn."""
    async with full_worker(app, valkey_url) as (_, gate, ender):
        ender.release()
        await wait_until_async(lambda: gate.held == 1, "a turn is under way")
        for _ in range(7):
            ender.release()
        await wait_until_async(lambda: ender.ended == 8, "seven more have ended")
        for _ in range(20):
            await asyncio.sleep(0)
        assert gate.held == 1

        ender.release()
        await wait_until_async(lambda: gate.held == 2, "eight are worth a turn")

        for _ in range(20):
            ender.release()
        await wait_until_async(lambda: ender.ended == 29, "more have ended")
        for _ in range(20):
            await asyncio.sleep(0)
        assert gate.held == 2


async def test_a_second_concurrent_exchange_claims_at_most_as_many_jobs_as_it_settles(
    app: App, valkey_url: str
) -> None:
    """Checks four places that only the first turn frees. The second turn may reach Redis before the first turn."""
    async with full_worker(app, valkey_url) as (_, gate, ender):
        await take_turns(ender, lambda: gate.held, 20, 8)

        assert gate.limits == [16, 8]


async def test_a_worker_whose_handlers_block_the_event_loop_has_one_exchange_with_redis_at_a_time(
    app: App, valkey_url: str
) -> None:
    """Checks the number of turns. Jobs of a second turn would only wait for the handlers of the first turn's jobs."""
    async with full_worker(app, valkey_url, blocks=0.005) as (_, gate, ender):
        ender.release()
        await wait_until_async(lambda: gate.held == 1, "a turn is under way")
        for _ in range(20):
            ender.release()
        await wait_until_async(lambda: ender.ended == 21, "twenty more have ended")
        for _ in range(20):
            await asyncio.sleep(0)

        assert gate.held == 1


async def test_a_stopping_worker_claims_nothing_with_either_of_its_two_concurrent_exchanges(
    app: App, valkey_url: str
) -> None:
    """Checks two turns that are sent again after a lost connection. Their limit of jobs is 0 now."""
    async with full_worker(app, valkey_url) as (worker, gate, ender):
        await take_turns(ender, lambda: gate.held, 1, 8)
        assert gate.limits == [1, 8]

        worker.stop()
        gate.cut()
        await wait_until_async(lambda: gate.held == 4, "both are sent again")

        assert gate.limits[2:] == [0, 0]


class Forgetful(AsyncPoolTransport):
    """A transport that delays one command until an event is set. A worker sends this command to declare its caps
    again."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked = 0
        self.told = asyncio.Event()

    async def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        if "whole_epoch" in commands[0]:
            self.asked += 1
            await self.told.wait()
        return await super().exchange(commands, *how)


async def test_while_a_worker_declares_caps_again_no_other_exchange_claims_jobs_for_places_that_are_taken(
    app: App, valkey_url: str
) -> None:
    """Checks that no other turn claims jobs for the places of the claimed jobs. No claimed job is given back."""
    async with full_worker(app, valkey_url) as (worker, gate, ender):
        queue = worker._groups.queues["q"]
        transport = worker._client._transport = Forgetful(valkey_url)
        await gate.close()
        queue.epoch = 0
        await take_turns(ender, lambda: transport.asked, 16, 8)

        transport.told.set()
        await wait_until_async(lambda: not queue.asked, "both are noted")

        assert worker.stats.claimed == 32 + 24
        assert worker._capacity.taken == 32


@pytest.mark.parametrize("share", [70, 130])
async def test_a_worker_with_two_exchanges_under_way_claims_at_most_max_jobs(
    app: App, share: int
) -> None:
    """Checks that the second turn counts the jobs that the first turn may claim. No claimed job is given back."""

    @app.task(queue="q")
    async def quick() -> None: ...

    app.enqueue_many(quick.job() for _ in range(1_000))
    worker = Worker(app, WorkerOptions(queues=("q",), concurrency=100, max_jobs=share))

    async with asyncio.timeout(60):
        await worker.run()

    assert (worker.stats.claimed, worker.stats.completed) == (share, share)
    assert worker.retired


async def test_unanswered_claims_of_one_shard_do_not_count_against_the_option_max_jobs_on_other_shards(
    app: App, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a shard that is down. Jobs of the other shards can use all places."""
    monkeypatch.setattr(AsyncPoolTransport, "one_slot", True)

    @app.task(queue="q")
    async def quick() -> None: ...

    app.queue("away")
    app.enqueue_many(quick.job() for _ in range(100))
    options = WorkerOptions(queues=("away", "q"), concurrency=16, max_jobs=20, grace=0.0)
    gate = Gate(valkey_url)
    gate.shut = lambda: True
    gate.holds = "away"
    worker = Worker(app, options, transport=gate)
    running = asyncio.create_task(worker.run())
    try:
        await wait_until_async(lambda: gate.held == 1, "the shard is asked")
        await wait_until_async(lambda: worker.retired, "the worker has done its share")
    finally:
        gate.shut = lambda: False
        worker.stop()
        await running

    assert worker.stats.completed == 20
