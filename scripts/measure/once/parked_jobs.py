"""Measures what durable jobs cost.

    scripts/measure/once/run parked-jobs [PART…] [--jobs N]

The parts are the time from a signal to the handler, and a run with 10,000 saved steps. Then come the memory of parked
jobs, a claim in a queue with parked jobs, and a save. Times are medians, with the 10th and the 90th percentile.
Instructions are counted under callgrind, with redis-server.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click
import redis

from rq_core.connections.client import Client
from rq_core.model.ids import JobIds
from rq_core.model.job import Claim, NewJob, profile
from rq_core.model.keys import queue_keys
from rq_core.model.lib.text import counted
from rq_core.model.result_encoding import pack_result
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.boxes import BATCH_MAX, Saving, save
from rq_core.scripts.script import function
from scripts.measure import instructions
from tests.kit.reaper import close_reaper
from tests.kit.servers import engines
from tests.kit.wait import wait_until
from tests.rigs.judge.times import percentile
from tests.rigs.parks import tasks
from tests.rigs.stage import Crew, directory, served, workers

QUEUE: Final = "mail"
WORKER: Final = "w-4211-9f3a61c2d0be"
LATER_MS: Final = 10**9
"""The time (ms) from now until the moment at which parked jobs would stop waiting."""
SLACK: Final = 0.02
REDIS: Final = next(engine for engine in engines() if engine.name == "redis7")
ENTRIES: Final = 10_000
VALUE: Final = pack_result('{"id":"ch_31Kq","amount":4200,"currency":"EUR"}')


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ms ({percentile(values, 0.1):.2f} to {percentile(values, 0.9):.2f})"


@contextmanager
def staged(*queues: str) -> Iterator[Crew]:
    """Yield a worker process that serves these queues of ``tests/rigs/parks``, on a new server."""
    with directory() as place, served(engines()[0], place) as server:
        tasks.app.connect_to(server.url)
        with workers(place, "tests.rigs.parks.tasks:app", queues, server.url) as crew:
            yield crew
        tasks.app.close()


def latency() -> Iterator[tuple[str, bool]]:
    """Measure the time from a signal until the handler of the parked job continues: with a worker of one queue, which
    prepares its claims, and with a worker of two queues.

    The jobs are measured one after another. Yield each figure as a line, with whether it meets its limit.
    """
    for queues in ([tasks.ASKED], [tasks.ASKED, tasks.LONG]):
        text, p50_ms = _latency(queues)
        yield (
            f"signal to handler, a worker with {counted(len(queues), 'queue')}: {text}",
            p50_ms <= 2,
        )


def _latency(queues: Sequence[str], rounds: int = 300) -> tuple[str, float]:
    calls, all_ms = [], []
    with staged(*queues) as crew:
        for number in range(rounds + 20):
            handle = tasks.ask.enqueue()
            wait_until(lambda h=handle: h.state() == "parked", "it is parked")  # type: ignore[misc]
            began = time.monotonic()
            tasks.app.signal(handle, "go", 1)
            returned = time.monotonic()
            (*_, line) = wait_until(
                lambda n=number: (found := crew.witness.lines("went")) and found[n:],  # type: ignore[misc]
                "its handler goes on",
            )
            if number >= 20:
                calls.append((returned - began) * 1e3)
                all_ms.append((line["at"] - began) * 1e3)
    text = f"{spread(all_ms)} from the call of app.signal; the call itself {spread(calls)}"
    return text, statistics.median(all_ms)


def resume(runs: int = 20) -> Iterator[tuple[str, bool]]:
    """Measure how fast a job with 10,000 saved steps continues. The job fails at its end, so that it runs again and
    again."""
    with staged(tasks.LONG) as crew:
        tasks.resume.enqueue(ENTRIES, runs)
        wait_until(
            lambda: len(crew.witness.lines("resumed")) > runs,
            lambda: f"it has run {len(crew.witness.lines('resumed'))} times: {crew.end_of_log()}",
            timeout=200,
        )
        first, *others = crew.witness.lines("resumed")
        loads = [each["load_s"] * 1e3 for each in others]
        passes = [each["all_s"] * 1e3 for each in others]
    text = (
        f"a job with {ENTRIES:,} saved steps: loaded in {spread(loads)}; passed all steps in {spread(passes)};"
        f" the first run saved them in {first['all_s']:.1f} s"
    )
    yield text, statistics.median(loads) <= 50


def park(client: Client, count: int) -> None:
    """Park ``count`` jobs. Each has saved a step, and waits for a signal until a time far ahead."""
    ids, plain = JobIds(), profile("send")
    client.run(
        client.calls.enqueue.many(NewJob(ids(), QUEUE, plain, '{"n":1}') for _ in range(count))
    )
    known = client.run(client.calls.reads.counts(QUEUE)).parked
    lives = itertools.count(known + 1)
    for _ in range(0, count, 100):
        held: list[Claim] = list(client.run(claims.claim(QUEUE, WORKER, 100)).jobs)
        named = [(each.id, each.fence, f"{next(lives):016x}") for each in held]
        steps = [Saving(*each, "save", 1, "charge", VALUE) for each in named]
        waits = [Saving(*each, "wait", 2, "approval", "", f"+{LATER_MS}") for each in named]
        for records in (steps, waits):
            client.run(save(QUEUE, WORKER, records))
        client.run(claims.park(QUEUE, WORKER, [(*each[:2], "2", each[2], "") for each in named]))
    assert client.run(client.calls.reads.counts(QUEUE)).parked == known + count


def memory(count: int) -> Iterator[tuple[str, bool]]:
    """Measure the bytes per parked job in Redis, without the outbox."""
    with directory() as place, served(engines()[0], place) as server, Client(server.url) as client:
        control: Any = redis.Redis.from_url(server.url)

        def used() -> int:
            outbox = control.memory_usage(queue_keys(QUEUE)("outbox"), samples=0)
            return int(control.info("memory")["used_memory"]) - int(outbox)

        park(client, 100)
        before, began = used(), time.monotonic()
        park(client, count)
        seconds = time.monotonic() - began
        each = (used() - before) / count
    yield (
        f"{count:,} parked jobs, made in {seconds:.0f} s: {each:,.0f} bytes of Redis each",
        each <= 1_100,
    )


def dumped(count: int) -> list[tuple[bytes, bytes]]:
    """Park ``count`` jobs on a server without callgrind, and return the queue's (key, DUMP) pairs.

    Under callgrind, parking the jobs would take an hour.
    """
    with directory() as place, served(REDIS, place) as server, Client(server.url) as client:
        park(client, count)
        control: Any = redis.Redis.from_url(server.url)
        return [(key, control.dump(key)) for key in control.scan_iter()]


def beside(count: int) -> Iterator[tuple[str, bool]]:
    """Count the instructions of a claim of a plain job in a queue with no parked job, with one, and with very many."""
    spent = []
    with instructions.serving() as server:
        nothing = server.counted(lambda: None)
        for parked in (0, 1, count):
            instructions.empty(server)
            for key, value in dumped(parked) if parked else ():
                server("RESTORE", key, 0, value)
            carried = ("durable",) if parked else ()
            life = instructions.Life(server, "plain", QUEUE, carried)
            spent.append(_median(server, life, "claim", nothing))
    without, one, many = spent
    text = (
        f"a claim of 1 plain job: {without:,} instructions beside no parked job, {one:,} beside one, {many:,} beside"
        f" {count:,} ({many / without - 1:+.1%} of none, {many / one - 1:+.1%} of one)"
    )
    yield text, many <= one * (1 + SLACK)


def _median(server: instructions.Server, life: instructions.Life, script: str, nothing: int) -> int:
    """Return the median instructions for one call of this script with one job. ``nothing``: the instructions of a
    window without calls, which are subtracted."""
    calls, found = instructions.CALLS[1], []
    for window in range(-1, instructions.WINDOWS):
        life.enqueue(1, calls)
        if script == "complete":
            life.claim(1, calls)
        server("FCALL", "collect", 0)
        count = server.counted(lambda: getattr(life, script)(1, calls))
        life.complete(1, calls)
        if window >= 0:
            found.append(count)
    return round((statistics.median(found) - nothing) / calls)


class Saves(instructions.Life):
    """One running job that saves step after step."""

    def __init__(self, server: instructions.Server) -> None:
        super().__init__(server, "kept", QUEUE)
        self.claim(1, 1)
        (self._job,) = self._held[0]
        self.entries = 0

    def save(self, batch: int, calls: int) -> None:
        for _ in range(calls):
            entries = range(self.entries + 1, self.entries + batch + 1)
            self._call(
                "save",
                [(*self._job, "9f3a0b1c22aa0001", "save", n, f"s{n}", "") for n in entries],
                worker=WORKER,
            )
            self.entries += batch


def saves() -> Iterator[tuple[str, bool]]:
    """Count the instructions for saving one step. For comparison, count those of a success with a kept result."""
    with instructions.serving() as server:
        nothing = server.counted(lambda: None)
        instructions.empty(server)
        success = _median(server, instructions.Life(server, "kept", QUEUE), "complete", nothing)
        instructions.empty(server)
        server(*function("save").loading)
        life, spent = Saves(server), []
        for upto in (0, 9_000):
            while life.entries < upto:
                life.save(BATCH_MAX, 1)
            found = []
            for window in range(-1, instructions.WINDOWS):
                server("FCALL", "collect", 0)
                count = server.counted(lambda: life.save(1, instructions.CALLS[1]))
                if window >= 0:
                    found.append(count)
            spent.append(round((statistics.median(found) - nothing) / instructions.CALLS[1]))
    first, last = spent
    text = (
        f"a save of one step: {first:,} instructions for the first entries of a job, {last:,} from the 9,000th on; a"
        f" success of one job with a kept result: {success:,} ({max(spent) / success:.2f} times)"
    )
    yield text, max(spent) <= 1.2 * success


PARTS: Final[dict[str, Callable[[int], Iterator[tuple[str, bool]]]]] = {
    "latency": lambda _: latency(),
    "resume": lambda _: resume(),
    "memory": memory,
    "beside": beside,
    "saves": lambda _: saves(),
}


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS)))
@click.option("--jobs", default=100_000, show_default=True, help="Parked jobs.")
def main(parts: Sequence[str], jobs: int) -> None:
    """Measure what durable jobs cost: all PARTS, or only these. Exit with 1 if a figure misses its bound."""
    missed = False
    for part in parts or PARTS:
        for text, is_met in PARTS[part](jobs):
            click.echo(text if is_met else f"FELL SHORT: {text}")
            missed = missed or not is_met
    close_reaper()
    raise SystemExit(missed)


if __name__ == "__main__":
    main()
