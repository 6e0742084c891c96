"""Kills workers (SIGKILL) at random times while jobs run children in another queue and wait for them.

Each child counts its effect in Redis. At the end each parent must have succeeded once, with the right sum of its
children's results. Each child must have succeeded once, except one per parent that always fails. Each parent must have
saved the result of each successful child once.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import redis

from rq_core import App, RetryPolicy, current_job, durable
from rq_core.app.durable import children
from rq_core.connections.client import Client
from rq_core.worker import Worker, WorkerOptions
from tests.rigs.parks.log import Log

PARENTS: Final = "parents"
PARTS: Final = "parts"
LEASE_S: Final = 0.5
LOOK_S: Final = 0.3
"""Seconds after which a parent looks again at children whose ends no worker reports."""
LIFE_S: Final = 0.1, 0.8
"""The shortest and the longest time (s) after which a worker is killed."""
FAILING: Final = 1
"""The child that never succeeds, and for which its parent does not ask."""
WITNESS: Final = "witness-of-families"
_FORKED: Final = multiprocessing.get_context("fork")


def _app(url: str) -> tuple[App, Any]:
    """Return an app and its task ``gather``. It runs children, jobs of the task ``square``, in another queue."""
    app = App(url)
    for queue in (PARENTS, PARTS):
        app.queue(queue, lease=LEASE_S)
    control: Any = redis.Redis.from_url(url)
    once = RetryPolicy(max_attempts=1)

    @app.task(name="square", queue=PARTS, max_losses=1_000, retry=once)
    async def square(n: int) -> int:
        control.hincrby(WITNESS, current_job().id, 1)
        await asyncio.sleep(0.01)
        if n == FAILING:
            raise ValueError("it never succeeds")
        return n * n

    @app.task(name="gather", queue=PARENTS, max_losses=1_000, retry=once)
    async def gather(count: int) -> int:
        job = durable()
        calls = (square.call(n) for n in range(count))
        squares = await job.map("squares", calls, min_success=count - 1)
        assert [FAILING] == [item.index for item in squares.failed]
        extra = await job.run(square.call(count))
        control.hset(WITNESS, job_sum(current_job().id), sum(squares.values()) + extra)
        return 0

    return app, gather


def job_sum(job_id: str) -> str:
    """Return the field of the witness key in which a parent stores its sum."""
    return f"{job_id} sum"


async def _work(url: str) -> None:
    logging.getLogger("rq_core").setLevel(logging.ERROR)  # Lost leases are expected.
    children.LOOK_MIN_S = LOOK_S  # type: ignore[misc]
    app, _ = _app(url)
    await Worker(app, WorkerOptions(queues=(PARENTS, PARTS), concurrency=20)).run()


def _run_worker(url: str) -> None:
    asyncio.run(_work(url))


@dataclass
class Families:
    """The counts of a run, and the problems that the run found."""

    parents: int
    children: int
    """Number of children of each parent."""
    kills: int = 0
    seconds: float = 0.0
    effects: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{self.kills} kills, {self.parents} parents with {self.children:,} children each, in {self.seconds:.0f} s;"
            f" {dict(self.counts)}; {self.effects:,} runs of children; {len(self.problems)} problems"
        )


def kill(
    url: str,
    place: Path,
    parents: int,
    count: int,
    kills: int,
    *,
    processes: int = 3,
    seed: int = 1,
    on_kill: Callable[[int], None] = lambda _: None,
) -> Families:
    """Kill ``kills`` workers while parents wait for their children, and let all parents end.

    Each parent has ``count`` + 1 children.
    """
    found, draw = Families(parents, count + 1), random.Random(seed)
    control: Any = redis.Redis.from_url(url, decode_responses=True)
    app, gather = _app(url)
    app.apply_settings()
    began = time.monotonic()
    with (
        Client(url) as client,
        Log(client, place, PARENTS) as log,
        Log(client, place, PARTS, of=log) as parts,
    ):

        def start() -> tuple[Any, float]:
            process = _FORKED.Process(target=_run_worker, args=(url,))
            process.start()
            return process, time.monotonic() + draw.uniform(*LIFE_S)

        handles = [gather.enqueue(count) for _ in range(parents)]
        crew = [start() for _ in range(processes)]
        try:
            while log.unended() or parts.unended() > parents or found.kills < kills:
                for at, (process, until) in enumerate(crew):
                    if found.kills < kills and time.monotonic() > until:
                        process.kill()
                        process.join()
                        found.kills += process.exitcode == -signal.SIGKILL
                        crew[at] = start()
                        on_kill(found.kills)
                log.follow()
                parts.follow()
                assert all(process.is_alive() for process, _ in crew)
                time.sleep(0.01)
        finally:
            for process, _ in crew:
                process.kill()
                process.join()
        found.seconds = time.monotonic() - began
        log.follow()
        parts.follow()
        _judge(log, parts, [each.id for each in handles], control.hgetall(WITNESS), found)
    app.close()
    return found


def _judge(log: Log, parts: Log, ids: list[str], witness: dict[str, str], found: Families) -> None:
    """Check the sums of the parents, and the numbers of successes and saved results in the logs."""
    for kind in ("parked", "woken", "signalled", "lease_expired"):
        found.counts[kind] = log.count(kind).total()
    found.effects = sum(int(times) for name, times in witness.items() if " " not in name)
    succeeded = log.count("succeeded")
    right = sum(n * n for n in range(found.children) if n != FAILING)
    for job_id in ids:
        if succeeded[job_id] != 1:
            found.problems.append(f"parent {job_id} succeeded {succeeded[job_id]} times")
        if witness.get(job_sum(job_id)) != str(right):
            found.problems.append(
                f"parent {job_id} says {witness.get(job_sum(job_id))}, not {right}"
            )
    ended = parts.count("succeeded")
    if ended.total() != len(ids) * (found.children - 1) or ended.most_common(1)[0][1] > 1:
        found.problems.append(f"{len(ended)} children succeeded {ended.total()} times")
    saved = Counter(
        (told.job, told.facts["name"])
        for told in log.events("step_saved")
        if "=" in told.facts["name"] and not told.facts["name"].endswith("=join")
    )
    if len(saved) != len(ids) * (found.children - 1) or saved.most_common(1)[0][1] > 1:
        found.problems.append(f"{len(saved)} results were saved {saved.total()} times")
    found.problems += log.problems()
