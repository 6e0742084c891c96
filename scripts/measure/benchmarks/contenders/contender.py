"""Code that all contenders (benchmarked libraries) share: the job's arguments, the times at which jobs began, and the
command line.

A contender is a script that does the same work with one library. Each job has an int and a 40-byte string, and does
nothing. Each contender runs in its own environment, so only the standard library is imported here.

    python ours.py one --jobs 1000      # a producer, each call awaited; prints {"per_s": …}
    python ours.py bulk --jobs 50000    # the same in calls of many jobs
    python ours.py paced --jobs 300     # one job every few milliseconds, when the one before has begun
    python ours.py work                 # a worker, until it is ended
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import mmap
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

TEXT = "0123456789012345678901234567890123456789"
CHUNK = 1_000
"""The number of jobs in one bulk call."""
PACE = 0.004
"""The time (s) that a worker gets to become idle before the next job of `paced`. A random time of the same maximum
length is added."""
STALLED = 5.0
WAIT_S = float(os.environ.get("BENCH_WAIT_S", "0"))
"""The time (s) that each handler waits; 0: it does nothing."""


def url() -> str:
    return os.environ["BENCH_REDIS"]


def concurrency() -> int:
    return int(os.environ.get("BENCH_CONCURRENCY", "100"))


def kind() -> str:
    """Return the kind of handlers to run, from ``BENCH_KIND``: `async` or `threads`.

    rq-core and the floor (redis-py without a queue) have further kinds, such as `cpu` or `wake`.
    """
    return os.environ.get("BENCH_KIND", "async")


class Tally:
    """The two times of each job, sent and begun, in a file that producers, workers and the benchmark share.

    The times are on the monotonic clock, which all processes of a machine share. A job's number is its position in the
    file, so threads and processes can write without a lock.
    """

    def __init__(self, path: str | Path, jobs: int | None = None) -> None:
        path = Path(path)
        if jobs is not None:
            path.write_bytes(bytes(16 * jobs))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        view = memoryview(self._map).cast("d")
        half = len(view) // 2
        self.began, self.sent = view[:half], view[half:]

    def moments(self) -> list[float]:
        """Return the times at which jobs began. Jobs that have not begun are left out."""
        return [at for at in self.began if at]


def handler() -> Callable[[int, str], None]:
    """Return a handler of jobs that only records the time at which its job began."""
    began = Tally(os.environ["BENCH_TALLY"]).began
    now = time.monotonic

    def note(number: int, text: str) -> None:  # noqa: ARG001 - it travels and is not used
        began[number] = now()

    return note


def run(
    *,
    one: Callable[[int], Any],
    work: Callable[[], Any],
    bulk: Callable[[Sequence[int]], Any] | None = None,
    ready: Callable[[], Any] | None = None,
) -> None:
    """Run the command line of a contender (a benchmarked library).

    ``one`` enqueues the job with a given number, and returns when the server has accepted it. ``bulk`` enqueues many
    jobs. ``ready`` is called once before a producer begins. ``work`` runs a worker. Each function but ``work`` may be a
    coroutine function.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("one", "bulk", "paced", "work"))
    parser.add_argument("--jobs", type=int, default=1_000)
    given = parser.parse_args()
    if given.part == "work":
        work()
        return

    async def produce() -> dict[str, float]:
        if ready is not None:
            await _value(ready())
        if given.part == "paced":
            return await _paced(one, given.jobs)
        if given.part == "bulk" and bulk is not None:
            calls: list[tuple[Callable[..., Any], Any]] = [
                (bulk, range(at, min(at + CHUNK, given.jobs))) for at in range(0, given.jobs, CHUNK)
            ]
        else:
            calls = [(one, number) for number in range(given.jobs)]
        waits = inspect.iscoroutinefunction(calls[0][0])
        started = time.perf_counter()
        if waits:
            for call, what in calls:
                await call(what)
        else:
            for call, what in calls:
                call(what)
        return {"per_s": given.jobs / (time.perf_counter() - started)}

    print(json.dumps(_run(produce)))


def _run(produce: Callable[[], Any]) -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(produce())
    return uvloop.run(produce())


async def _value(made: Any) -> Any:
    return await made if isinstance(made, Awaitable) else made


async def _paced(one: Callable[[int], Any], jobs: int) -> dict[str, float]:
    tally = Tally(os.environ["BENCH_TALLY"])
    draw = random.Random(7)  # noqa: S311 - a pace, no secret
    calls = []
    for number in range(jobs):
        tally.sent[number] = began = time.monotonic()
        await _value(one(number))
        calls.append(time.monotonic() - began)
        patience = time.monotonic() + STALLED
        while not tally.began[number]:
            if time.monotonic() > patience:
                raise SystemExit(f"job {number} has not begun after {STALLED} s")
            # Asleep, so that the worker has a core to itself.
            time.sleep(0.0005)  # noqa: ASYNC251 - nothing else runs on this loop
        time.sleep(PACE + draw.random() * PACE)  # noqa: ASYNC251
    return {"call_ms": 1e3 * statistics.median(calls)}
