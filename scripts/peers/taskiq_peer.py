"""Peer taskiq: it uses the stream broker of taskiq-redis, acknowledges jobs when they are done, and keeps no
results."""

from __future__ import annotations

import asyncio
import os
import sys

from contender import TEXT, WAIT_S, concurrency, handler, run, url
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(url(), queue_name="bench")
note = handler()


@broker.task(task_name="noop")
async def noop(number: int, text: str) -> None:
    """Do nothing, or wait."""
    note(number, text)
    if WAIT_S:
        await asyncio.sleep(WAIT_S)


async def ready() -> None:
    await broker.startup()


async def one(number: int) -> None:
    await noop.kiq(number, TEXT)


def work() -> None:
    words = [
        "worker",
        "taskiq_peer:broker",
        "--workers",
        "1",
        "--max-async-tasks",
        str(concurrency()),
    ]
    words += ["--ack-type", "when_executed", "--log-level", "WARNING"]
    os.execv(sys.executable, [sys.executable, "-m", "taskiq", *words])  # noqa: S606 - no shell


if __name__ == "__main__":
    run(one=one, work=work, ready=ready)
