"""A worker sends the signal that a child has ended behind the call that ends the child, in one round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from rq_core import App, RetryPolicy, durable
from rq_core.app.durable.children import LOOK_MIN_S
from rq_core.connections.transport import AsyncPoolTransport
from rq_core.protocol.engine.plan import Lost
from rq_core.worker import Worker, WorkerOptions
from tests.kit.wait import wait_until_async
from tests.kit.working import at_work

ONCE = RetryPolicy(max_attempts=1)
SETTLES = {"complete", "turn"}


class Diary(AsyncPoolTransport):
    """A transport that keeps the scripts of each exchange with a signal.

    Of the next ``losing`` of these exchanges, only the signals reach Redis.
    """

    losing = 0

    def begin(self) -> Diary:
        self.exchanges: list[list[str]] = []
        return self

    async def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        scripts = [c[1].split("_")[1] if c[0] == "FCALL" else c[0] for c in commands]
        if "signal" not in scripts:
            return await super().exchange(commands, *how)
        self.exchanges.append(scripts)
        if not self.losing:
            return await super().exchange(commands, *how)
        self.losing -= 1
        passed = [c for c, script in zip(commands, scripts, strict=True) if script == "signal"]
        replies = iter(await super().exchange(passed, *how))
        return [next(replies) if script == "signal" else Lost("cut") for script in scripts]


async def run_family(app: App, transport: Diary, losing: int) -> list[list[str]]:
    """Run a parent with two children, one after the other. Of the first ``losing`` exchanges with a signal for the
    second child, only the signals reach Redis. Return the scripts of the exchanges for the second child."""
    did: list[int] = []
    ended = asyncio.Event()

    @app.task(queue="parts", retry=ONCE)
    async def part(n: int) -> int:
        await wait_until_async(lambda: worker.stats.parked == n, "the parent is parked")
        if n == 2:
            # The first child's calls have loaded the functions.
            transport.exchanges.clear()
            transport.losing = losing
        return n

    @app.task(queue="joins", retry=ONCE)
    async def join() -> None:
        did.extend([await durable().run(part.call(n)) for n in (1, 2)])
        ended.set()

    worker = Worker(app, WorkerOptions(queues=("parts", "joins")), transport=transport)
    async with at_work(worker):
        await join.enqueue_async()
        # A parent that gets no signal looks by itself, but not earlier.
        async with asyncio.timeout(LOOK_MIN_S - 1):
            await ended.wait()
    await app.aclose()
    assert [1, 2] == did
    return transport.exchanges


async def test_the_signal_to_a_parent_is_sent_behind_the_call_that_ends_the_child(
    app: App, valkey_url: str
) -> None:
    (scripts,) = await run_family(app, Diary(valkey_url).begin(), losing=0)

    assert SETTLES & set(scripts[: scripts.index("signal")])


async def test_the_signal_to_a_parent_is_sent_again_if_the_child_ended_only_after_the_signal(
    app: App, valkey_url: str
) -> None:
    first, *others = await run_family(app, Diary(valkey_url).begin(), losing=1)

    assert SETTLES & set(first[: first.index("signal")])
    assert [["signal"]] == others
