"""Peer streaq: it uses streams, keeps no results, and enqueues in bulk with enqueue_many."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from contender import TEXT, WAIT_S, concurrency, handler, run, url
from streaq import Worker

worker = Worker(redis_url=url(), queue_name="bench", concurrency=concurrency())
note = handler()


@worker.task(ttl=0, name="noop")
async def noop(number: int, text: str) -> None:
    """Do nothing, or wait."""
    note(number, text)
    if WAIT_S:
        await asyncio.sleep(WAIT_S)


async def ready() -> None:
    await worker.__aenter__()


async def one(number: int) -> None:
    await noop.enqueue(number, TEXT)


async def bulk(numbers: Sequence[int]) -> None:
    await worker.enqueue_many([noop.enqueue(number, TEXT) for number in numbers])


def work() -> None:
    worker.run_sync()


if __name__ == "__main__":
    run(one=one, bulk=bulk, work=work, ready=ready)
