"""A worker's memory after plain jobs: they leave no reference cycles, which Python frees only by a search through all
objects."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import redis

from rq_core import App
from rq_core.model.keys import queue_keys
from tests.kit.wait import wait_until_async
from tests.kit.working import working

JOBS: Final = 300
ROUNDS: Final = 4
QUEUE: Final = "mail"


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    with App(valkey_url) as made:
        yield made


def on_the_loop(app: App) -> Any:
    @app.task(queue=QUEUE)
    async def send(n: int) -> None: ...

    return send


def in_a_thread(app: App) -> Any:
    @app.task(queue=QUEUE)
    def send(n: int) -> None: ...

    return send


@pytest.mark.parametrize("make", [on_the_loop, in_a_thread])
async def test_plain_jobs_leave_no_reference_cycles_in_their_worker(
    app: App, make: Callable[[App], Any]
) -> None:
    control: Any = redis.Redis.from_url(app.redis_url)
    send = make(app)
    found = []
    gc.collect()
    gc.disable()
    try:
        async with working(app, queues=(QUEUE,), concurrency=20):
            for _ in range(ROUNDS):
                await app.enqueue_many_async([send.job(n=n) for n in range(JOBS)])
                await wait_until_async(
                    lambda: not control.exists(queue_keys(QUEUE)("jobs")), "the jobs end"
                )
                found.append(gc.collect())
    finally:
        gc.enable()

    # What a process makes once, such as the texts of a script at its first call, leaves cycles in one of the rounds.
    assert min(found) < JOBS
