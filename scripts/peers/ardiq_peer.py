"""Peer ardiq: it uses streams, acknowledges jobs when they are done, and enqueues many jobs with enqueue_many."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ardiq import Ardiq
from contender import TEXT, WAIT_S, concurrency, handler, run, url

app = Ardiq(
    redis_url=url(),
    queue_name="bench",
    concurrency=concurrency(),
    prefetch=concurrency(),
    result_ttl_ms=0,
)
note = handler()


@app.task(name="noop")
async def noop(number: int, text: str) -> None:
    """Do nothing, or wait."""
    note(number, text)
    if WAIT_S:
        await asyncio.sleep(WAIT_S)


async def one(number: int) -> None:
    await noop.enqueue(number, TEXT)


async def bulk(numbers: Sequence[int]) -> None:
    await app.enqueue_many([noop.prepare(number, TEXT) for number in numbers])


def work() -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(app.run())
    else:
        uvloop.run(app.run())


if __name__ == "__main__":
    run(one=one, bulk=bulk, work=work)
