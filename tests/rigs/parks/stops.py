"""Suspends a worker (SIGSTOP) within a step for twice its lease. Another worker runs the job meanwhile."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rq_core.connections.client import Client
from tests.kit.wait import wait_until
from tests.rigs.parks import tasks
from tests.rigs.parks.log import Log
from tests.rigs.stage import WORKER, workers


@dataclass
class Stops:
    """The counts of a run, and the problems that the run found."""

    stops: int
    refused: Counter[str] = field(default_factory=Counter)
    """The errors that suspended workers got when they tried to save their steps."""
    stopped_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{self.stops} workers stopped within a step, for {min(self.stopped_s):.1f} to {max(self.stopped_s):.1f} s"
            f" (lease {tasks.LEASE_S:g} s): their saves raised {dict(self.refused)}; {len(self.problems)} problems"
        )


def stop(url: str, place: Path, stops: int) -> Stops:
    """Suspend one of two workers within a step of a new job, ``stops`` times."""
    found, app = Stops(stops), tasks.app
    app.connect_to(url)
    app.apply_settings()
    with (
        Client(url) as client,
        Log(client, place, tasks.STOPS) as log,
        workers(place, "tests.rigs.parks.tasks:app", [tasks.STOPS], url, count=2) as crew,
    ):
        for number in range(stops):
            handle = tasks.stop_inside.enqueue()
            zombie = wait_until(
                lambda: next((each for each in crew.units if each.process.is_stopped), None),
                lambda: f"a worker is stopped: {crew.end_of_log()}",
            )
            assert zombie is not None
            began = time.monotonic()
            wait_until(
                lambda began=began: time.monotonic() - began > 2 * tasks.LEASE_S,  # type: ignore[misc]
                "twice the lease is over",
            )
            wait_until(lambda h=handle: h.state() == "gone", "another worker has done the job")  # type: ignore[misc]
            os.kill(zombie.pid, signal.SIGCONT)
            found.stopped_s.append(time.monotonic() - began)
            wait_until(
                lambda n=number: len(crew.witness.lines("refused")) > n,  # type: ignore[misc]
                lambda: f"its save is refused: {crew.end_of_log()}",
            )
        found.refused.update(each["error"] for each in crew.witness.lines("refused"))
        crew.stop(WORKER)
        log.follow()
        _judge(log, found)
    app.close()
    return found


def _judge(log: Log, found: Stops) -> None:
    """Check that each job saved its step once, and not by the suspended worker."""
    lost, saved = log.count("lease_expired"), log.count("step_saved")
    fences = {each.job: each.facts["fence"] for each in log.events("lease_expired")}
    for job in log.count("enqueued"):
        if (lost[job], saved[job]) != (1, 1):
            found.problems.append(f"{job} lost {lost[job]} leases and saved {saved[job]} steps")
    for each in log.events("step_saved"):
        if each.facts["fence"] == fences.get(each.job):
            found.problems.append(f"{each.job}: the worker that was stopped saved its step")
    if found.refused != {"LeaseLost": found.stops}:
        found.problems.append(f"the saves raised {dict(found.refused)}")
    found.problems += log.problems()
