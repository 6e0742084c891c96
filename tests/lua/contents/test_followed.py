"""Readers of a job's progress and stream, while the job moves from an inbox to Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rq_core.app.handles import watching
from rq_core.app.handles.watching import Watched
from rq_core.protocol.engine.plan import Plan
from tests.kit.seed import Seed

START = watching.start_of(0)


class AsyncReader:
    """An async client that passes each call to the seed's sync client."""

    def __init__(self, seed: Seed) -> None:
        self.client = seed.client
        self.calls = seed.client.calls

    async def run(self, plan: Plan[Any]) -> Any:
        return self.client.run(plan)


def follow(job: Watched, what: str) -> list[Any]:
    if what == "watch":
        return [each.text for each in watching.follow_progress(job, 0.05)]
    if what == "stream":
        return [each.text for each in watching.follow_stream(job, START)]

    async def collect() -> list[Any]:
        if what == "watch_async":
            return [each.text async for each in watching.follow_progress_async(job, 0.05)]
        return [each.text async for each in watching.follow_stream_async(job, START)]

    return asyncio.run(collect())


def watched(seed: Seed, is_row: Callable[[], bool] | None) -> Watched:
    producer: Any = SimpleNamespace(client=seed.client, async_client=lambda: AsyncReader(seed))
    return Watched(producer, seed.queue, "a", is_row)


@pytest.mark.parametrize("what", ["watch", "watch_async", "stream", "stream_async"])
def test_a_reader_follows_a_job_that_leaves_the_inbox_between_two_reads(
    seed: Seed, what: str
) -> None:
    def hand_over() -> bool:
        claim = seed.running("a")
        seed.show(claim, says="1/2 half", chunks=[(1, "half")])
        seed.fail(claim, verdict="final")
        return False

    assert follow(watched(seed, hand_over), what) == ["half"]


@pytest.mark.parametrize("what", ["watch", "watch_async", "stream", "stream_async"])
def test_a_reader_ends_if_its_job_is_neither_in_an_inbox_nor_in_redis(
    seed: Seed, what: str
) -> None:
    looks: list[bool] = []

    def no_row() -> bool:
        looks.append(False)
        return False

    assert follow(watched(seed, no_row), what) == []
    assert follow(watched(seed, None), what) == []
    assert looks == [False]
