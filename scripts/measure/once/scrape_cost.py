"""Measures Redis' time for one read of all queues while a million jobs wait, half of them in fifty thousand lanes.

    scripts/measure/once/run scrape-cost [--jobs N] [--lanes N] [--looks N]

It fails if the median of the reads is 5 ms or more, by Redis' own count (INFO commandstats).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from rq_core.connections.client import Client
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, profile
from rq_core.model.limits.scopes import lane_name
from rq_core.protocol.calls import claims
from tests.kit import servers
from tests.kit.servers import RedisServer

MS_MAX = 5.0
QUEUES = ("plain", "lanes")


def jobs(count: int, lanes: int, names: tuple[str, str] = QUEUES) -> Iterator[NewJob]:
    """Yield ``count`` jobs for the two queues ``names``. The jobs of the first queue have no caps; those of the second
    are divided into ``lanes`` lanes, groups that the same caps count."""
    plainly, laned = names
    ids, plain, capped = JobIds(), profile("send"), profile("render")
    for n in range(count // 2):
        yield NewJob(ids(), plainly, plain, '{"n":1}')
        lane = lane_name(2, ["task=render", f"tenant=t{n % lanes}"])
        yield NewJob(ids(), laned, capped, '{"n":1}', 0, lane)


def redis_ms(control: Any) -> float:
    """Return the time (ms) that Redis has spent so far in commands other than INFO."""
    stats = control.info("commandstats")
    return float(sum(each["usec"] for name, each in stats.items() if "info" not in name)) / 1000


def fill(client: Client, count: int, lanes: int, names: tuple[str, str] = QUEUES) -> str:
    """Fill two queues on an empty server. Return a line about the jobs, the lanes and the time taken."""
    laned = names[1]
    limits = [("tenant", "1", -1), ("task=render", "100", -1)]
    client.run(client.calls.enqueue.many([NewJob(JobIds()(), laned, profile("render"), "{}")]))
    client.run(client.calls.caps.set(laned, limits, why="a measurement"))
    began = time.monotonic()
    client.run(client.calls.enqueue.many(jobs(count, lanes, names)))
    for _ in range(4):
        client.run(claims.claim(laned, "w-1", 100))
    (state,) = client.run(client.calls.reads.looks([laned]))[0]
    seconds = time.monotonic() - began
    lanes_are = f"{state.open_lanes:,} lanes are open and {state.blocked_lanes:,} blocked"
    return f"{count:,} jobs in {seconds:.0f} s; {lanes_are}"


def measure(url: str, count: int, lanes: int, looks: int) -> list[float]:
    """Fill a server, read all queues several times, and return Redis' time (ms) for each read."""
    with Client(url) as client, redis.Redis.from_url(url) as control:
        print(fill(client, count, lanes))
        took = []
        for _ in range(looks):
            before = redis_ms(control)
            client.run(client.calls.reads.overview())
            took.append(redis_ms(control) - before)
    return took


def main() -> int:
    """Measure on each engine. Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--lanes", type=int, default=50_000)
    parser.add_argument("--looks", type=int, default=50)
    given = parser.parse_args()
    status = 0
    for engine in servers.engines():
        with tempfile.TemporaryDirectory() as directory:
            server = RedisServer(engine, Path(directory)).start()
            try:
                took = measure(server.url, given.jobs, given.lanes, given.looks)
            finally:
                server.stop()
        middle, most = statistics.median(took), max(took)
        says = f"{engine.name}: {middle:.2f} ms a look in Redis, {most:.2f} ms at most"
        print(says)
        status |= middle >= MS_MAX
    return status


if __name__ == "__main__":
    sys.exit(main())
