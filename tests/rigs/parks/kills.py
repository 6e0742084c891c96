"""Kills workers (SIGKILL) at random times while their jobs park, wake and save steps. Redis counts the effects.

The workers are forked, so that they start at once. The effect of a step is a script in Redis that counts its runs. No
run may come after the step was saved, under a claim in force. A slow worker may lose its claim within a step. Its
effects are counted apart, as late.
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
from rq_core.connections.client import Client
from rq_core.model.keys import queue_keys
from rq_core.worker import Worker, WorkerOptions
from tests.rigs.durable.kills import WITNESS
from tests.rigs.parks.log import Log

QUEUE: Final = "trips"
LEASE_S: Final = 0.5
NAP_S: Final = 0.2
LIFE_S: Final = 0.1, 0.8
"""The shortest and the longest time (s) after which a worker is killed."""
EFFECT: Final = """
local line = redis.call('HGET', KEYS[1], ARGV[1]) or ''
local life = line:match(' life=(%S+)')
local header = life and redis.call('HGET', KEYS[2], life) or ''
local in_force = line:find(' fence=' .. ARGV[3] .. ' ', 1, true)
if not in_force then
  redis.call('HINCRBY', KEYS[3], ARGV[1] .. ' ' .. ARGV[2] .. ' late', 1)
end
for number = 1, tonumber(header:match(' entries=(%d+)')) or 0 do
  local entry = redis.call('HGET', KEYS[2], life .. '|' .. number) or ''
  if in_force and entry:sub(1, #ARGV[2] + 7) == ARGV[2] .. ' saved ' then
    redis.call('HINCRBY', KEYS[3], ARGV[1] .. ' ' .. ARGV[2] .. ' again', 1)
  end
end
return redis.call('HINCRBY', KEYS[3], ARGV[1] .. ' ' .. ARGV[2], 1)
"""
"""The effect of a step. The script counts all effects; effects of a claim that is not in force (``late``); and effects
of a claim in force, if Redis has the step as saved (``again``)."""
_FORKED: Final = multiprocessing.get_context("fork")


def _app(url: str) -> tuple[App, Any]:
    """Return an app and its durable task ``travel``. After each step, its jobs sleep or wait, in turn."""
    app = App(url)
    app.queue(QUEUE, lease=LEASE_S)
    keys = queue_keys(QUEUE)
    control: Any = redis.Redis.from_url(url)

    async def effect(name: str) -> None:
        job, named = current_job(), (keys("state"), keys("boxes"), WITNESS)
        control.eval(EFFECT, 3, *named, job.id, name, job.fence)
        await asyncio.sleep(0.01)

    @app.task(name="travel", queue=QUEUE, max_losses=1_000, retry=RetryPolicy(max_attempts=1))
    async def travel(legs: int) -> None:
        job = durable()
        for leg in range(legs):
            await job.step(f"s{leg}", effect, f"s{leg}")
            if leg % 2:
                assert leg == await job.wait(f"go{leg}", int)
            else:
                await job.sleep(f"nap{leg}", NAP_S)

    return app, travel


async def _work(url: str) -> None:
    logging.getLogger("rq_core").setLevel(logging.ERROR)  # Lost leases are expected.
    app, _ = _app(url)
    await Worker(app, WorkerOptions(queues=(QUEUE,), concurrency=20)).run()


def _run_worker(url: str) -> None:
    asyncio.run(_work(url))


@dataclass
class Kills:
    """The counts of a run, and the problems that the run found."""

    jobs: int
    legs: int
    kills: int = 0
    effects: int = 0
    repeated: int = 0
    """Number of effects that happened a second time because their worker was killed before it saved the step."""
    late: int = 0
    """Number of effects of workers that had lost their claims during the step."""
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{self.kills} kills, {self.jobs} jobs with {self.legs} steps and {self.legs} waits or sleeps each;"
            f" {dict(self.counts)}; {self.effects:,} effects, {self.repeated} of them again before their"
            f" save, {self.late} of workers that had lost their claim within the step;"
            f" {len(self.problems)} problems"
        )


def kill(
    url: str,
    place: Path,
    jobs: int,
    kills: int,
    *,
    legs: int = 8,
    processes: int = 3,
    seed: int = 1,
    on_kill: Callable[[int], None] = lambda _: None,
) -> Kills:
    """Kill ``kills`` workers while ``jobs`` jobs run. At the end all jobs must have succeeded."""
    found, draw = Kills(jobs, legs), random.Random(seed)
    control: Any = redis.Redis.from_url(url, decode_responses=True)
    app, travel = _app(url)
    app.apply_settings()
    handles: list[Any] = []
    to_send: list[tuple[Any, int]] = []
    with Client(url) as client, Log(client, place, QUEUE) as log:

        def start() -> tuple[Any, float]:
            process = _FORKED.Process(target=_run_worker, args=(url,))
            process.start()
            return process, time.monotonic() + draw.uniform(*LIFE_S)

        crew = [start() for _ in range(processes)]
        try:
            while log.unended() or len(handles) < jobs or found.kills < kills:
                if found.kills * jobs >= len(handles) * kills and len(handles) < jobs:
                    handles.append(travel.enqueue(legs))
                    to_send += [(handles[-1], leg) for leg in range(1, legs, 2)]
                if to_send:
                    handle, leg = to_send.pop(draw.randrange(len(to_send)))
                    app.signal(handle, f"go{leg}", leg, key=f"go{leg}")
                for at, (process, until) in enumerate(crew):
                    if found.kills < kills and time.monotonic() > until:
                        process.kill()
                        process.join()
                        found.kills += process.exitcode == -signal.SIGKILL
                        crew[at] = start()
                        on_kill(found.kills)
                log.follow()
                assert all(process.is_alive() for process, _ in crew)
                time.sleep(0.01)
        finally:
            for process, _ in crew:
                process.kill()
                process.join()
        log.follow()
        _judge(log, [each.id for each in handles], control.hgetall(WITNESS), found)
    app.close()
    return found


def _judge(log: Log, ids: list[str], witness: dict[str, str], found: Kills) -> None:
    """Check that each job succeeded once, that no step was skipped, and that no step happened after it was saved."""
    for kind in ("parked", "woken", "step_saved", "lease_expired"):
        found.counts[kind] = log.count(kind).total()
    succeeded = log.count("succeeded")
    for job_id in ids:
        if succeeded[job_id] != 1:
            found.problems.append(f"job {job_id} succeeded {succeeded[job_id]} times")
        for leg in range(found.legs):
            name = f"{job_id} s{leg}"
            times = int(witness.get(name, 0))
            found.effects += times
            found.repeated += max(0, times - 1)
            found.late += int(witness.get(f"{name} late", 0))
            if not times:
                found.problems.append(f"step {name} was skipped")
            if again := witness.get(f"{name} again"):
                found.problems.append(f"step {name} happened {again} times after it was saved")
    if found.counts["step_saved"] != 2 * found.legs * len(ids):
        found.problems.append(f"{found.counts['step_saved']} steps, sleeps and waits were saved")
    found.problems += log.problems()
