"""Peer blitzq: it runs in reliable mode (streams, at least once), keeps no results, and uses enqueue_many."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from blitzq import Queue
from contender import TEXT, WAIT_S, concurrency, handler, run, url

queue = Queue(name="bench", redis_url=url(), mode="reliable", store_results=False)
note = handler()


@queue.task(name="noop")
async def noop(number: int, text: str) -> None:
    """Do nothing, or wait."""
    note(number, text)
    if WAIT_S:
        await asyncio.sleep(WAIT_S)


async def one(number: int) -> None:
    await noop.enqueue(number, TEXT)


async def bulk(numbers: Sequence[int]) -> None:
    await noop.enqueue_many([(number, TEXT) for number in numbers])


def work() -> None:
    words = [
        "worker",
        "blitzq_peer:queue",
        "--concurrency",
        str(concurrency()),
        "--log-level",
        "WARNING",
    ]
    os.execv(sys.executable, [sys.executable, "-m", "blitzq", *words])  # noqa: S606 - no shell


if __name__ == "__main__":
    run(one=one, bulk=bulk, work=work)
