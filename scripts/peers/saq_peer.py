"""Peer saq: it keeps no results. As many asyncio tasks dequeue jobs as the worker has places."""

from __future__ import annotations

import asyncio
from typing import Any

from contender import TEXT, WAIT_S, concurrency, handler, run, url
from saq import Queue, Worker

queue = Queue.from_url(url(), name="bench")
note = handler()


async def noop(_: Any, *, number: int, text: str) -> None:
    """Do nothing, or wait."""
    note(number, text)
    if WAIT_S:
        await asyncio.sleep(WAIT_S)


async def ready() -> None:
    await queue.connect()


async def one(number: int) -> None:
    await queue.enqueue("noop", number=number, text=TEXT, ttl=-1)


def work() -> None:
    worker = Worker(queue, functions=[noop], concurrency=concurrency())
    try:
        import uvloop
    except ImportError:
        asyncio.run(worker.start())
    else:
        uvloop.run(worker.start())


if __name__ == "__main__":
    run(one=one, work=work, ready=ready)
