"""Measures how fast a queue is emptied (a drain) while fifty tabs show the web page, in alternation with drains without
tabs.

The drain, Redis, the page and the tabs share the machine's cores. So the drain is also slowed by the processor time of
the page and the tabs, which elsewhere run on other machines. page_cost measures only the time that tabs take of Redis.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Sequence
from typing import Any, Final

from rq_core.connections.client import Client
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, profile
from rq_core.protocol.calls import claims

SPEED_MIN: Final = 0.9
"""The lowest allowed speed of drains while tabs show the page, as a part of the speed without tabs."""
ROUNDS: Final = 27
JOBS: Final = 40_000


def drains(tabs: Sequence[str], redis_url: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """Make ``rounds`` pairs of drains of JOBS jobs: one without tabs, and one while tabs show the page. ``tabs``: the
    command that starts them.

    Return the sorted jobs per second under ``without`` and ``with``, and under ``speed`` the median with tabs divided
    by the median without tabs.
    """
    speeds: dict[str, list[float]] = {"without": [], "with": []}
    with Client(redis_url) as client:
        for number in range(2 * rounds):
            # Each pair begins with the other way, so that neither is always the first after a pause.
            way = ("without", "with")[(number + number // 2) % 2]
            looking = _looking(tabs) if way == "with" else None
            speeds[way].append(JOBS / _drain(client))
            if looking is not None:
                looking.communicate()
    found = {way: [round(each) for each in sorted(rates)] for way, rates in speeds.items()}
    middle = {way: statistics.median(rates) for way, rates in speeds.items()}
    speed = round(middle["with"] / middle["without"], 3)
    print(f"drains, jobs/s, in alternation: {found}; with tabs {speed} of without", flush=True)
    return {**found, "speed": speed}


def _looking(tabs: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the tabs, and return when each of them has shown the page."""
    looking = subprocess.Popen(tabs, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert looking.stdout is not None
    looking.stdout.readline()
    return looking


def _drain(client: Client) -> float:
    """Enqueue JOBS jobs, claim and end them, and return the time (s) of the claims and ends."""
    ids, sort = JobIds(), profile("none")
    client.run(client.calls.enqueue.many(NewJob(ids(), "drained", sort, "{}") for _ in range(JOBS)))
    began, done, held = time.perf_counter(), 0, list[tuple[str, str]]()
    while done < JOBS:
        took = client.run(claims.turn("drained", "w-1", 100, held)).jobs
        done += len(held)
        held = [(each.id, each.fence) for each in took]
    return time.perf_counter() - began
