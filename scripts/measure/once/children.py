"""Measures what children of durable jobs cost.

    scripts/measure/once/run children [PART…] [--jobs N] [--rounds N] [--engine NAME]

*cost* is the processor time of Redis for a child, beside a plain job (at most 2.5 times), by the width of its map. The
same number of jobs is enqueued each time: ``width`` jobs by each of several parents, or ``width`` plain jobs by each of
as many calls. The time of the parents themselves is part of the children's. One worker runs all jobs. Rounds with
children and with plain jobs alternate, and the median of their ratios is judged.

*latency* is the time from the last line of a child's handler until its parent's next step (p50 at most 3 ms). Parent
and child run in two worker processes. The best of several rounds is judged. The output also has the time of a bare
round trip to the same server.

*scripts* is the longest call of a script while one map runs, by the server's own clock (SLOWLOG). This clock also
counts the time in which the server waits for a processor, so the round with the least value is judged (at most 10 ms).
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import click
import redis

from rq_core import App, durable
from rq_core.model.durable.children import CHILDREN_MAX
from rq_core.model.keys import queue_keys
from tests.kit.reaper import close_reaper
from tests.kit.servers import Engine, engines
from tests.kit.wait import wait_until, wait_until_async
from tests.kit.working import working
from tests.rigs.judge.times import percentile
from tests.rigs.parks import tasks
from tests.rigs.stage import directory, served, workers

ENGINES: Final = {each.name: each for each in engines()}
JOINS: Final = "joins"
PARTS: Final = "parts"
WIDTHS: Final = (10, 100, 1_000, CHILDREN_MAX)
RATIO_MAX: Final = 2.5
LATENCY_MS: Final = 3.0
SCRIPT_MS: Final = 10.0
ENDED: Final = 40
"""Number of children whose latency is measured in each round."""
BARE: Final = 2_000

Line = tuple[str, bool]
"""A line of the output, and whether its figure is within its bound."""


class Stage:
    """An app with a worker in this process, and the processor time of its server."""

    def __init__(self, url: str) -> None:
        self.app = App(url)
        self.control: Any = redis.Redis.from_url(url, decode_responses=True)

        @self.app.task(name="part", queue=PARTS)
        async def part(n: int) -> int:
            return n

        @self.app.task(name="join", queue=JOINS)
        async def join(width: int) -> None:
            found = await durable().map("parts", (part.call(n) for n in range(width)))
            if sum(found.values()) != sum(range(width)):
                raise ValueError("the sum is wrong")

        self.part, self.join = part, join

    def _cpu_us(self) -> float:
        spent = self.control.info("cpu")
        return 1e6 * sum(float(spent[f"used_cpu_{kind}_main_thread"]) for kind in ("user", "sys"))

    async def _ended(self) -> None:
        keys = [queue_keys(queue)("jobs") for queue in (JOINS, PARTS)]
        await wait_until_async(
            lambda: not self.control.exists(*keys), "all jobs have ended", timeout=300
        )

    async def children(self, jobs: int, width: int) -> float:
        """Let parents with ``width`` children each run ``jobs`` children. Return the µs of Redis for each child."""
        before = self._cpu_us()
        await self.app.enqueue_many_async(self.join.job(width) for _ in range(jobs // width))
        await self._ended()
        return (self._cpu_us() - before) / (jobs // width * width)

    async def plain(self, jobs: int, width: int) -> float:
        """Enqueue and run ``jobs`` plain jobs, ``width`` in each call. Return the µs of Redis for each job."""
        before = self._cpu_us()
        for _ in range(jobs // width):
            await self.app.enqueue_many_async(self.part.job(n) for n in range(width))
        await self._ended()
        return (self._cpu_us() - before) / (jobs // width * width)


def cost(engine: Engine, jobs: int, rounds: int) -> Iterator[Line]:
    """Compare Redis' processor time for a child and for a plain job, at each width."""

    async def compare(url: str, width: int) -> list[tuple[float, float]]:
        stage = Stage(url)
        async with working(stage.app, queues=(JOINS, PARTS), concurrency=100):
            await stage.plain(jobs // 4, min(width, jobs // 4))
            found = [
                (await stage.children(jobs, width), await stage.plain(jobs, width))
                for _ in range(rounds)
            ]
        stage.app.close()
        return found

    for width in WIDTHS:
        with directory() as place, served(engine, place) as server:
            pairs = asyncio.run(compare(server.url, width))
        ratios = sorted(child / plain for child, plain in pairs)
        child, plain = (statistics.median(each) for each in zip(*pairs, strict=True))
        middle = statistics.median(ratios)
        text = (
            f"width {width:,}: a child {child:.1f} µs of Redis, a plain job {plain:.1f} µs: {middle:.2f} times"
            f" ({ratios[0]:.2f} to {ratios[-1]:.2f} in {rounds} rounds)"
        )
        yield text, middle <= RATIO_MAX


def latency(engine: Engine, _jobs: int, rounds: int) -> Iterator[Line]:
    """Measure the time from the end of a child until its parent's next step."""
    app, queues = "tests.rigs.parks.tasks:app", (tasks.JOINED, tasks.ENDED)
    medians, tails = [], []
    with directory() as place, served(engine, place) as server:
        tasks.app.connect_to(server.url)
        bare = _bare_ms(server.url)
        with (
            workers(place, app, queues[:1], server.url),
            workers(place, app, queues[1:], server.url, count=1) as crew,
        ):
            for number in range(1, rounds + 1):
                tasks.join_again.enqueue(ENDED)
                wait_until(
                    lambda n=number: len(crew.witness.lines("joined")) == ENDED * n,  # type: ignore[misc]
                    lambda: f"all parents go on: {crew.end_of_log()}",
                    timeout=120,
                )
                lines = crew.witness.lines("joined")[-ENDED:]
                all_ms = [(line["at"] - line["ended"]) * 1e3 for line in lines]
                medians.append(statistics.median(all_ms))
                tails.append(percentile(all_ms, 0.9))
        tasks.app.close()
    text = (
        f"child's end to parent's next step: p50 {min(medians):.2f} ms in the best of {rounds} rounds,"
        f" {statistics.median(medians):.2f} ms in the middle one (p90 {min(tails):.2f} and"
        f" {statistics.median(tails):.2f} ms); a bare round trip {bare:.2f} ms"
    )
    yield text, min(medians) <= LATENCY_MS


def _bare_ms(url: str) -> float:
    """Return the median of bare EVALSHA round trips (ms)."""
    control: Any = redis.Redis.from_url(url)
    sha, found = control.script_load("return 1"), []
    for _ in range(BARE):
        began = time.perf_counter()
        control.evalsha(sha, 0)
        found.append((time.perf_counter() - began) * 1e3)
    control.close()
    return statistics.median(found)


def scripts(engine: Engine, _jobs: int, rounds: int) -> Iterator[Line]:
    """Find the longest call of a script while one map of the greatest width runs."""

    async def run(url: str) -> tuple[float, str]:
        stage = Stage(url)
        stage.control.config_set("slowlog-log-slower-than", 500)
        stage.control.config_set("slowlog-max-len", 100_000)
        stage.control.slowlog_reset()
        async with working(stage.app, queues=(JOINS, PARTS), concurrency=100):
            await stage.children(CHILDREN_MAX, CHILDREN_MAX)
        calls = [(e["duration"] / 1e3, str(e["command"])) for e in stage.control.slowlog_get(10**5)]
        stage.app.close()
        return max(
            ((ms, said.split()[1]) for ms, said in calls if "FCALL" in said[:8]), default=(0.0, "")
        )

    found = []
    for _ in range(rounds):
        with directory() as place, served(engine, place) as server:
            found.append(asyncio.run(run(server.url)))
    (least, name), middle = min(found), statistics.median(ms for ms, _ in found)
    text = (
        f"{CHILDREN_MAX:,} children of one map: the longest call of a script took {least:.1f} ms in the best of"
        f" {rounds} rounds ({name}), {middle:.1f} ms in the middle one, {max(found)[0]:.1f} ms in the worst"
    )
    yield text, least <= SCRIPT_MS


PARTS_MEASURED: Final[dict[str, Callable[[Engine, int, int], Iterator[Line]]]] = {
    "cost": cost,
    "latency": latency,
    "scripts": scripts,
}


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS_MEASURED)))
@click.option("--jobs", default=CHILDREN_MAX, show_default=True, help="Children of a round.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--engine", type=click.Choice(list(ENGINES)), default=next(iter(ENGINES)))
def main(parts: tuple[str, ...], jobs: int, rounds: int, engine: str) -> None:
    """Measure what children cost: all PARTS, or only these. Exit with 1 if a figure misses its bound."""
    missed = False
    for part in parts or PARTS_MEASURED:
        for text, is_met in PARTS_MEASURED[part](ENGINES[engine], jobs, rounds):
            said = f"{engine}: {text}; load {os.getloadavg()[0]:.1f}"
            click.echo(said if is_met else f"FELL SHORT: {said}")
            missed = missed or not is_met
    close_reaper()
    raise SystemExit(missed)


if __name__ == "__main__":
    main()
