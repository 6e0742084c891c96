"""Measures what children of durable jobs cost.

    scripts/measure/once/run children [cost] [latency] [calls] [instructions] [--jobs N] [--rounds N] [--engine NAME]

*cost* is the processor time of Redis for a child, compared with a plain job (at most 2.5 times), by the number of
children of a parent (width). The same number of jobs is enqueued each time: ``width`` jobs by each of several parents,
or ``width`` plain jobs by each of as many calls. The time of the parents themselves is part of the children's. One
worker runs all jobs. Rounds with children and with plain jobs alternate, and the median of their ratios is judged.

*latency* is the time from the last line of a child's handler until its parent's next step (p50 at most 3 ms). Parent
and child run in two worker processes. The best of several rounds of parents with one child is judged. The output also
has the time for a parent that runs 40 children one after another, and so passes up to 39 saved children and steps
first, and the time of a bare round trip to the same server.

*calls* is the processor time of Redis for each kind of call that children need (at most 10 ms). No other call runs at
the same time, so the clock of the server's process gives the time of one call. SLOWLOG also counts the time in which
the server waits for a processor.

*instructions* are those of Redis under callgrind, with redis-server, for the same jobs as *cost*. They change less on a
busy machine than times do. But the worker puts more or fewer jobs into a call, so one round may differ from another by
8 %: the medians of several rounds are compared. A round before them loads the functions.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final

import click
import redis

from rq_core import App, durable
from rq_core.app.durable.children import SAVED_MAX
from rq_core.app.durable.items import child_of
from rq_core.connections.client import Client
from rq_core.model.durable.children import CHILDREN_MAX, child_id, child_wait, parent_header
from rq_core.model.job import Claim, NewJob
from rq_core.model.keys import queue_keys
from rq_core.model.result_encoding import pack_result
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.boxes import BATCH_MAX, Saving, save
from rq_core.worker import Worker, WorkerOptions
from rq_core.worker.settlement import Settlement, calls_of
from scripts.measure import instructions as counting
from tests.kit.reaper import close_reaper
from tests.kit.servers import Engine, engines
from tests.kit.wait import wait_until, wait_until_async
from tests.kit.working import working
from tests.rigs.judge.times import percentile
from tests.rigs.parks import tasks
from tests.rigs.stage import Crew, directory, served, workers

ENGINES: Final = {each.name: each for each in engines()}
JOINS: Final = "joins"
PARTS: Final = "parts"
WIDTHS: Final = (10, 100, 1_000, CHILDREN_MAX)
RATIO_MAX: Final = 2.5
LATENCY_MS: Final = 3.0
CALL_MS: Final = 10.0
LONG_S: Final = 600.0
"""The maximum time (s) for the jobs of one width under callgrind."""
WORKER: Final = "w-1"
LIFE: Final = "9f3a0b1c22aa0001"
RESULT: Final = pack_result("17")
ENDED: Final = 40
"""Number of children whose latency is measured in each round."""
BARE: Final = 2_000

Line = tuple[str, bool]
"""A line of the output, and whether its figure meets its limit."""


class Stage:
    """An app with a worker in this process, on a server whose processor time is measured."""

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
    with directory() as place, served(engine, place) as server:
        tasks.app.connect_to(server.url)
        bare = _bare_ms(server.url)
        with (
            workers(place, app, queues[:1], server.url),
            workers(place, app, queues[1:], server.url, count=1) as crew,
        ):
            alone = [_joined(crew, parents=ENDED, children=1) for _ in range(rounds)]
            behind = [_joined(crew, parents=1, children=ENDED) for _ in range(rounds)]
        tasks.app.close()
    yield (
        f"child's end to parent's next step: {_medians(alone)}; a bare round trip {bare:.2f} ms",
        (min(map(statistics.median, alone)) <= LATENCY_MS),
    )
    yield f"the same for parents that pass saved children first: {_medians(behind)}", True


def _joined(crew: Crew, *, parents: int, children: int) -> list[float]:
    """Run parents one after another, each with this number of children one after another. Return for each child the
    time (ms) from its end to the parent's next step."""
    known = len(crew.witness.lines("joined"))
    for number in range(1, parents + 1):
        tasks.join_again.enqueue(children)
        wait_until(
            lambda n=number: len(crew.witness.lines("joined")) == known + children * n,  # type: ignore[misc]
            lambda: f"all parents go on: {crew.end_of_log()}",
            timeout=120,
        )
    return [(line["at"] - line["ended"]) * 1e3 for line in crew.witness.lines("joined")[known:]]


def _medians(rounds: Sequence[Sequence[float]]) -> str:
    medians = [statistics.median(each) for each in rounds]
    tails = [percentile(each, 0.9) for each in rounds]
    return (
        f"p50 {min(medians):.2f} ms in the best of {len(rounds)} rounds,"
        f" {statistics.median(medians):.2f} ms in the middle one"
        f" (p90 {min(tails):.2f} and {statistics.median(tails):.2f} ms)"
    )


def _bare_ms(url: str) -> float:
    """Return the median duration (ms) of a bare EVALSHA round trip."""
    control: Any = redis.Redis.from_url(url)
    sha, found = control.script_load("return 1"), []
    for _ in range(BARE):
        began = time.perf_counter()
        control.evalsha(sha, 0)
        found.append((time.perf_counter() - began) * 1e3)
    control.close()
    return statistics.median(found)


def calls(engine: Engine, _jobs: int, rounds: int) -> Iterator[Line]:
    """Measure Redis' processor time for each kind of call that children need, one call at a time.

    The children have the ids, the options and the header that a parent gives them.
    """
    spent: dict[str, list[float]] = defaultdict(list)
    with directory() as place, served(engine, place) as server, Client(server.url) as client:
        stage = Stage(server.url)
        clock = (~server.pid << 3) | 2  # Linux' clock of another process' processor time
        (parent,) = _claimed(client, stage.join.job(1), JOINS)

        def timed(what: str, plan: Any) -> Any:
            began = time.clock_gettime(clock)
            answer = client.run(plan)
            spent[what].append((time.clock_gettime(clock) - began) * 1e3)
            return answer

        for number in range(rounds + 1):
            if number == 1:
                spent.clear()  # The first round loads the scripts.
            header = parent_header(JOINS, parent.id, child_wait(1, number), LIFE, str(number))
            jobs = [
                child_of(stage.part.call(n), child_id(LIFE, str(number), n), header)
                for n in range(BATCH_MAX)
            ]
            timed(f"enqueue of {BATCH_MAX}", client.calls.enqueue.many(jobs))
            held = timed(f"claim of {BATCH_MAX}", claims.claim(PARTS, WORKER, BATCH_MAX)).jobs
            ended = [Settlement(claim, "complete", value=RESULT) for claim in held]
            for call, _ in calls_of(WORKER, ended):
                timed(f"success of {len(ended)}", call)
            timed(
                f"look at {BATCH_MAX}", client.calls.endings.look(PARTS, [job.id for job in jobs])
            )
            first = number * SAVED_MAX
            records = [
                Saving(
                    parent.id,
                    parent.fence,
                    LIFE,
                    "save",
                    first + n + 1,
                    f"parts={first + n}",
                    RESULT,
                )
                for n in range(SAVED_MAX)
            ]
            timed(f"save of {SAVED_MAX}", save(JOINS, WORKER, records))
        stage.app.close()
    medians = {what: statistics.median(found) for what, found in spent.items()}
    said = ", ".join(f"{what} {ms:.1f} ({max(spent[what]):.1f})" for what, ms in medians.items())
    text = f"processor time of Redis for calls, medians (and maxima) of {rounds}, in ms: {said}"
    yield text, max(medians.values()) <= CALL_MS


def _claimed(client: Client, job: NewJob, queue: str) -> Sequence[Claim]:
    client.run(client.calls.enqueue.many([job]))
    return client.run(claims.claim(queue, WORKER, 1)).jobs


def instructions(_engine: Engine, _jobs: int, rounds: int) -> Iterator[Line]:
    """Count Redis' instructions for a child and for a plain job, at each width."""
    with counting.serving() as server:
        stage = Stage(f"unix://{server.directory}/socket")
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()

        def done(work: Coroutine[Any, Any, Any]) -> None:
            asyncio.run_coroutine_threadsafe(work, loop).result(LONG_S)

        worker = Worker(stage.app, WorkerOptions(queues=(JOINS, PARTS), concurrency=100))
        running = asyncio.run_coroutine_threadsafe(worker.run(), loop)
        done(stage.plain(100, 100))
        done(stage.children(10, 10))
        nothing = server.counted(lambda: None)
        for width in WIDTHS:
            jobs = max(width, 500)
            spent: list[list[float]] = [[], []]
            for number in range(rounds + 1):
                for kind, counts in zip((stage.plain, stage.children), spent, strict=True):
                    work = partial(kind, jobs, width)
                    count = server.counted(lambda work=work: done(work()))  # type: ignore[misc]
                    if number:
                        counts.append((count - nothing) / jobs)
            plain, child = map(statistics.median, spent)
            text = f"width {width:,}: a child {child:,.0f} instructions of Redis, a plain job {plain:,.0f}: "
            yield f"{text}{child / plain:.2f} times", child <= RATIO_MAX * plain
        loop.call_soon_threadsafe(worker.stop)
        running.result(LONG_S)
        loop.call_soon_threadsafe(loop.stop)


PARTS_MEASURED: Final[dict[str, Callable[[Engine, int, int], Iterator[Line]]]] = {
    "cost": cost,
    "latency": latency,
    "calls": calls,
    "instructions": instructions,
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
            name = "redis7" if part == "instructions" else engine
            said = f"{name}: {text}; load {os.getloadavg()[0]:.1f}"
            click.echo(said if is_met else f"FELL SHORT: {said}")
            missed = missed or not is_met
    close_reaper()
    raise SystemExit(missed)


if __name__ == "__main__":
    main()
