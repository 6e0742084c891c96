"""Measures a million reports of progress of a job, and a job's stream of chunks that three readers keep leaving and
reading again.

    scripts/measure/once/run streams [--chunks N]

Reports are measured by the calls that they make to Redis. A reader must get no chunk twice, and must learn of each
chunk that it missed. Its stream must end only when the job has left Redis.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any, Final
from unittest.mock import patch

import click

from rq_core import App, Chunk, JobHandle, current_job
from rq_core.protocol.calls.shows import Show, show_jobs
from rq_core.worker.execution import shows
from tests.kit.reaper import close_reaper
from tests.kit.servers import engines
from tests.kit.working import working
from tests.rigs.stage import directory, served

QUEUE: Final = "streams"
REPORTS: Final = 1_000_000
READERS: Final = 3
BURST: Final = 200
"""Number of chunks after which the handler lets the loop work."""


async def reports(app: App) -> str:
    """Let a job report its progress a million times. Return a line with the number of calls to Redis."""
    sent: list[float] = []

    def counted(queue: str, worker: str, records: Sequence[Show]) -> Any:
        sent.append(time.monotonic())
        return show_jobs(queue, worker, records)

    @app.task(queue=QUEUE)
    def counts() -> float:
        job, began = current_job(), time.monotonic()
        for done in range(REPORTS):
            job.progress(done, REPORTS, "counting")
        return time.monotonic() - began

    with patch.object(shows, "show_jobs", counted):
        async with working(app, queues=(QUEUE,), grace=5.0):
            took = await counts.with_options(keep_result=60).enqueue().result_async(300)
    span = sent[-1] - sent[0]
    if len(sent) > 2 * span + 2:
        raise click.ClickException(f"{len(sent)} calls in {span:.2f} s")
    each = took / REPORTS * 1e9
    return f"{REPORTS:,} reports in {took:.2f} s ({each:.0f} ns each): {len(sent)} calls in {span:.2f} s"


async def read(app: App, handle: JobHandle[Any], seed: int) -> tuple[int, int, int]:
    """Read a job's stream, leaving it and coming back, until the stream ends.

    Return the number of chunks that the reader got, the number that it missed, and the number of visits.
    """
    rng = random.Random(seed)  # noqa: S311 - no secret
    got, missed, last, times = 0, 0, 0, 0
    while True:
        most, times = rng.randrange(1, 2_000), times + 1
        async for chunk in handle.stream_async(after=last):
            _check(chunk, last)
            got, missed, last, most = got + 1, missed + chunk.missed, chunk.number, most - 1
            if most == 0:
                break
        else:
            client = app.async_client()
            if await client.run(client.calls.reads.job(handle.id, [QUEUE])) is not None:
                raise click.ClickException("the stream ended before its job")
            return got, missed, times
        await asyncio.sleep(rng.uniform(0, 0.05))


def _check(chunk: Chunk, last: int) -> None:
    if chunk.number != last + chunk.missed + 1 or chunk.text != str(chunk.number):
        raise click.ClickException(f"after chunk {last} came {chunk}")


async def stream(app: App, chunks: int) -> str:
    """Let a job emit ``chunks`` chunks to three readers. Return a line about what each reader got."""

    @app.task(queue=QUEUE)
    async def emits() -> None:
        for number in range(1, chunks + 1):
            current_job().emit(str(number))
            if number % BURST == 0:
                await asyncio.sleep(0.02)

    handle = emits.enqueue()
    began = time.monotonic()
    async with working(app, queues=(QUEUE,), grace=5.0):
        found = await asyncio.gather(*(read(app, handle, seed) for seed in range(READERS)))
    for got, missed, _ in found:
        if got + missed != chunks:
            raise click.ClickException(f"{got:,} chunks and {missed:,} missed are not {chunks:,}")
    said = ", ".join(f"{got:,} got and {missed:,} missed in {n} visits" for got, missed, n in found)
    return f"{chunks:,} chunks in {time.monotonic() - began:.1f} s: {said}"


@click.command()
@click.option("--chunks", default=100_000, show_default=True)
def main(chunks: int) -> None:
    """Measure a million reports of progress, and a stream with three readers, on each engine."""
    for engine in engines():
        with directory() as place, served(engine, place) as server:
            for work in (reports, lambda app: stream(app, chunks)):
                app = App(server.url)
                click.echo(f"{engine.name}: {asyncio.run(work(app))}")
                app.close()
    close_reaper()


if __name__ == "__main__":
    main()
