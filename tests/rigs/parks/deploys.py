"""Replaces the worker again and again while very many jobs sleep. The old worker gets SIGTERM, and a new one starts."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rq_core.connections.client import Client
from tests.kit.wait import wait_until
from tests.rigs.judge.times import percentile
from tests.rigs.parks import tasks
from tests.rigs.parks.log import Log
from tests.rigs.stage import WORKER, workers

SECONDS_EACH: Final = 5.0
"""The seconds of sleep for each deploy: as long as a deploy takes on a busy machine."""


@dataclass
class Deploys:
    """The counts of a run, and the problems that the run found."""

    jobs: int
    deploys: int = 0
    beside: list[int] = field(default_factory=list)
    """The number of parked jobs at each deploy."""
    late_ms: list[int] = field(default_factory=list)
    """For each job, the time (ms) from the end of its sleep until it was woken."""
    rolled_back: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{self.deploys} deploys in {self.seconds:.0f} s during the sleeps of {self.jobs:,} jobs"
            f" ({sum(map(bool, self.beside))} deploys beside parked jobs, {max(self.beside, default=0):,} at most):"
            f" {len(self.late_ms):,} woken, {min(self.late_ms, default=0)} ms after their moment at least, p50"
            f" {percentile(self.late_ms, 0.5):.0f} ms, {max(self.late_ms, default=0):,} ms at most;"
            f" {self.rolled_back} claims given back; {len(self.problems)} problems"
        )


def deploy(
    url: str,
    place: Path,
    jobs: int,
    deploys: int,
    *,
    seconds_each: float = SECONDS_EACH,
    seed: int = 1,
) -> Deploys:
    """Let ``jobs`` jobs sleep, and replace the worker ``deploys`` times meanwhile."""
    found, draw, app = Deploys(jobs), random.Random(seed), tasks.app
    app.connect_to(url)
    app.apply_settings()
    with (
        Client(url) as client,
        Log(client, place, tasks.NAPS) as log,
        workers(
            place, "tests.rigs.parks.tasks:app", [tasks.NAPS], url, "--concurrency", "50"
        ) as crew,
    ):
        began = time.monotonic()
        # Longer sleeps for more jobs, since the first runs of all jobs take time, too.
        span = seconds_each * (deploys + 1) + jobs / 200
        app.enqueue_many(tasks.nap.job(draw.uniform(1.0, span)) for _ in range(jobs))
        wait_until(
            lambda: _parked(client) > jobs / 3,
            lambda: f"jobs are parked, now {_parked(client)}: {crew.end_of_log()}",
            timeout=span,
        )
        for number in range(deploys):
            found.beside.append(_parked(client))
            found.problems += [f"a worker ended with {each}" for each in crew.stop(WORKER) if each]
            crew.start()
            crew.wait_started(number + 2)
            found.deploys += 1
            log.follow()
        wait_until(
            lambda: not log.unended(),
            lambda: f"all jobs have ended, {log.unended()} are left: {crew.end_of_log()}",
            timeout=span + 60,
        )
        crew.stop(WORKER)
        found.seconds = time.monotonic() - began
        log.follow()
        _judge(log, found)
    app.close()
    return found


def _parked(client: Client) -> int:
    return client.run(client.calls.reads.counts(tasks.NAPS)).parked


def _judge(log: Log, found: Deploys) -> None:
    """Check that each job parked, woke and succeeded once, and that none woke before its sleep was over."""
    due = {each.job: each.facts["due_ms"] for each in log.events("parked")}
    # A job is not parked if its sleep is already over: after its first claim was given back, for example.
    for each in log.events("woken"):
        found.late_ms.append(each.at_ms - due[each.job])
        if found.late_ms[-1] < 0:
            found.problems.append(f"{each.job} was woken {-found.late_ms[-1]} ms early")
    for kind, expected in (("parked", due), ("woken", due), ("succeeded", log.count("enqueued"))):
        times = log.count(kind)
        found.problems += [
            f"{job} was {kind} {times[job]} times" for job in expected if times[job] != 1
        ]
    if log.count("enqueued").total() != found.jobs:
        found.problems.append("the log has not all jobs")
    found.rolled_back = log.count("rolled_back").total()
    found.problems += log.problems()
