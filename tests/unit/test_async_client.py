"""Enqueue calls that several callers of the asyncio client share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from rq_core.connections.async_client import AsyncClient
from rq_core.model.job import NewJob, profile
from rq_core.protocol.calls.enqueue import ENQUEUE_CHUNK, Accepted


class Looked(list[Any]):
    """A list that counts how many of its items were read."""

    count = 0

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            self.count += 1
            yield each


async def test_a_batched_enqueue_call_reads_only_the_jobs_that_it_sends() -> None:
    """A call that read all waiting jobs would make the total time grow with the square of their number."""
    client = AsyncClient()
    future: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
    jobs = [NewJob(str(n), "q", profile("t"), "{}") for n in range(4 * ENQUEUE_CHUNK)]
    waiting = client.shared.waiting = Looked((job, future) for job in jobs)

    batch = client.shared.next_batch()

    assert [job for job, _ in batch] == jobs[:ENQUEUE_CHUNK]
    assert [job for job, _ in client.shared.waiting] == jobs[ENQUEUE_CHUNK:]
    assert waiting.count <= ENQUEUE_CHUNK + 1
    await client.close()
