"""Peer arq: it keeps no results, and polls every 20 ms. Its default of 0.5 s would dominate the measurement."""

from __future__ import annotations

import asyncio
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func
from contender import TEXT, WAIT_S, concurrency, handler, run, url

note = handler()
settings = RedisSettings.from_dsn(url())
pool: Any = None


async def noop(_: Any, number: int, text: str) -> None:
    """Do nothing, or wait."""
    note(number, text)
    if WAIT_S:
        await asyncio.sleep(WAIT_S)


async def ready() -> None:
    global pool  # noqa: PLW0603 - one per process
    pool = await create_pool(settings)


async def one(number: int) -> None:
    await pool.enqueue_job("noop", number, TEXT)


def work() -> None:
    Worker(
        functions=[func(noop, keep_result=0)],  # type: ignore[arg-type]
        redis_settings=settings,
        max_jobs=concurrency(),
        poll_delay=0.02,
    ).run()


if __name__ == "__main__":
    run(one=one, work=work, ready=ready)
