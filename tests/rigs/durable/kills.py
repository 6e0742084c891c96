"""Kills workers between any two calls of a durable handler with 30 steps. Redis counts the effects of the steps.

    python -m tests.rigs.durable.kills --kills 1000

Each round starts a worker for each queue, and kills it with SIGKILL at a random point. A point is before or after an
effect or a save. The effect of a step is a script in Redis that counts its runs. The script also counts runs after the
step was saved, which must never happen. At the end, each step must have run, and a step with a check must have run
once. ``audit verify`` must prove the log.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import redis

from rq_core import NOT_DONE, App, RetryPolicy, current_job, durable
from rq_core.connections.client import Client
from rq_core.model.keys import queue_keys
from rq_core.worker import Worker, WorkerOptions
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.reaper import close_reaper
from tests.kit.schemas import lay_schema
from tests.kit.servers import engines
from tests.rigs.stage import served

STEPS: Final = 30
LEASE_S: Final = 0.4
POINTS_MAX: Final = 60
"""The number of points, from the first point on, among which the point of a kill is drawn. A run of a whole job
passes some 200 points."""
POLL_S: Final = 0.02
WITNESS: Final = "witness"
_FORKED: Final = multiprocessing.get_context("fork")

EFFECT: Final = """
local life = (redis.call('HGET', KEYS[1], ARGV[1]) or ''):match(' life=(%S+)')
local header = life and redis.call('HGET', KEYS[2], life) or ''
for number = 1, tonumber(header:match(' entries=(%d+)')) or 0 do
  local entry = redis.call('HGET', KEYS[2], life .. '|' .. number) or ''
  if entry:sub(1, #ARGV[2] + 7) == ARGV[2] .. ' saved ' then
    redis.call('HINCRBY', KEYS[3], ARGV[1] .. ' ' .. ARGV[2] .. ' again', 1)
  end
end
return redis.call('HINCRBY', KEYS[3], ARGV[1] .. ' ' .. ARGV[2], 1)
"""
"""The Lua script that is the effect of a step. It counts its runs, and separately the runs after Redis had saved the
step."""


@dataclass
class Kill:
    """The point at which this process kills itself. Points are counted in the order of the process' calls."""

    at: int | None
    passed: int = 0

    def point(self) -> None:
        """Count one more point, and kill the process if this is the chosen point."""
        self.passed += 1
        if self.passed == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class Killing:
    """The client with which a worker saves steps. The process may be killed before or after each call."""

    def __init__(self, client: Any, kill: Kill) -> None:
        self._client, self._kill = client, kill
        self.calls = client.calls

    async def run(self, plan: Any) -> Any:
        self._kill.point()
        found = await self._client.run(plan)
        self._kill.point()
        return found

    async def carry_out(self, calls: Any) -> Any:
        self._kill.point()
        found = await self._client.carry_out(calls)
        self._kill.point()
        return found


def has_check(number: int) -> bool:
    return number % 3 == 0


def _app(url: str, queue: str, kill: Kill) -> tuple[App, Any]:
    """Return an app and its task ``order``, a durable job with 30 steps."""
    app = App(url)
    app.queue(queue, lease=LEASE_S)
    keys = queue_keys(queue)
    control: Any = redis.Redis.from_url(url)

    async def effect(name: str) -> int:
        kill.point()
        control.eval(EFFECT, 3, keys("state"), keys("boxes"), WITNESS, current_job().id, name)
        kill.point()
        return int(name[1:])

    async def find(name: str) -> Any:
        kill.point()
        happened = control.hexists(WITNESS, f"{current_job().id} {name}")
        return int(name[1:]) if happened else NOT_DONE

    @app.task(
        name="order",
        queue=queue,
        max_losses=100,
        retry=RetryPolicy(max_attempts=1),
    )
    async def order() -> None:
        job = durable()
        total = 0
        for number in range(STEPS):
            options = job.options(check=find) if has_check(number) else job
            total += await options.step(f"s{number}", effect, f"s{number}")
            kill.point()
        assert total == sum(range(STEPS))

    return app, order


async def _work(url: str, queue: str, at: int | None) -> None:
    logging.getLogger("rq_core").setLevel(
        logging.ERROR
    )  # Lost leases and the server's settings are no news here.
    kill = Kill(at)
    app, _ = _app(url, queue, kill)
    control: Any = redis.Redis.from_url(url)
    worker = Worker(app, WorkerOptions(queues=(queue,)))
    saver: Any = worker._handlers.executor._saver
    saver.client = Killing(saver.client, kill)
    running = asyncio.create_task(worker.run())
    while control.hlen(queue_keys(queue)("jobs")):  # noqa: ASYNC110 - Redis says so, no event
        await asyncio.sleep(POLL_S)
    worker.stop()
    await running
    await app.connections.aclose()


def _run_worker(url: str, queue: str, at: int | None) -> None:
    asyncio.run(_work(url, queue, at))


@dataclass
class Outcome:
    """The counts of a run, and the problems that the run found."""

    kills: int = 0
    jobs: int = 0
    effects: int = 0
    repeated: int = 0
    """The number of repeated effects. A step without a check may repeat its effect if the worker is killed before the
    save."""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        steps = self.jobs * STEPS
        return (
            f"{self.kills} kills, {self.jobs} jobs, {steps} steps: {self.effects} effects, {self.repeated} of them"
            f" again before their save, {len(self.problems)} problems"
        )


def run(
    url: str,
    database: Database,
    *,
    kills: int,
    queues: int,
    seed: int,
    on_round: Callable[[Outcome], None] = lambda _: None,
) -> Outcome:
    """Run workers in rounds until ``kills`` workers were killed. Then let the jobs end, and return the counts.

    ``on_round`` is called after each round.
    """
    rng = random.Random(seed)
    names = [f"orders-{number}" for number in range(queues)]
    done, jobs = Outcome(), list[str]()
    control: Any = redis.Redis.from_url(url, decode_responses=True)
    with Client(url) as client:
        mirrors = [Mirror(Outbox(client), database, name) for name in names]
        while True:
            is_last = done.kills >= kills
            for name in names:
                if not is_last and not control.hlen(queue_keys(name)("jobs")):
                    app, order = _app(url, name, Kill(None))
                    jobs.append(order.enqueue().id)
                    app.close()
            at = [None if is_last else rng.randint(1, POINTS_MAX) for _ in names]
            workers = [
                _FORKED.Process(target=_run_worker, args=(url, name, point))
                for name, point in zip(names, at, strict=True)
            ]
            for each in workers:
                each.start()
            for each in workers:
                each.join()
            done.kills += sum(each.exitcode == -signal.SIGKILL for each in workers)
            wrong = [each.exitcode for each in workers if each.exitcode not in (0, -signal.SIGKILL)]
            done.problems += [f"a worker ended with status {code}" for code in wrong]
            for mirror in mirrors:
                auditlog.drain(mirror)
            on_round(done)
            if is_last or wrong:
                break
        told = control.hgetall(WITNESS)
        _judge(jobs, {name: int(times) for name, times in told.items()}, done)
    result = verify(database)
    done.problems += [f"{each.invariant}: {each.says}" for each in result.violations]
    if result.verdict is not LogVerdict.HOLDS:
        done.problems.append(f"verify says {result.verdict}")
    return done


def _judge(jobs: Iterable[str], witness: dict[str, int], done: Outcome) -> None:
    for job_id in jobs:
        done.jobs += 1
        for number in range(STEPS):
            name = f"{job_id} s{number}"
            times = witness.get(name, 0)
            done.effects += times
            if not times:
                done.problems.append(f"step {name} was skipped")
            if again := witness.get(f"{name} again"):
                done.problems.append(f"step {name} happened {again} times after it was saved")
            if has_check(number) and times > 1:
                done.problems.append(f"step {name} has a check, and happened {times} times")
            done.repeated += max(0, times - 1)


def main(arguments: Sequence[str]) -> int:
    """Run the programme. Return the exit status."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--kills", type=int, default=1_000)
    asked.add_argument("--queues", type=int, default=8)
    asked.add_argument("--seed", type=int, default=1)
    given = asked.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place, served(engines()[0], Path(place)) as server:
        database = Database(f"sqlite:///{place}/audit.db")
        lay_schema(database)
        done = run(
            server.url,
            database,
            kills=given.kills,
            queues=given.queues,
            seed=given.seed,
            on_round=lambda so_far: print(f"{so_far.kills} kills", file=sys.stderr),  # noqa: T201
        )
    close_reaper()
    print(done)  # noqa: T201 - its answer
    for problem in done.problems[:20]:
        print("PROBLEM:", problem)  # noqa: T201
    return 1 if done.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
