"""Measures what waiting jobs cost the Redis server: bytes per job, time per job in queues of several lengths, and the
longest call.

It also measures the commands that an idle worker sends.
"""

from __future__ import annotations

import itertools
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
import redis
from contender import Tally
from redis_time import ARGS, timed
from sizes import Sizes
from stage import OURS, Stage

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.table.machine import Priority
from rq_core.protocol.calls import claims
from sql_audit.mirror import service
from sql_audit.mirror.redis_access import Outbox
from sql_audit.queries import history
from sql_audit.store.connection.database import Database

QUEUE = "kept"
WORKER = "w-29020-e5b73040c5d1"
BATCH = 100
ROUNDS = 5
LONG_BATCH = 250
"""The number of jobs per claim and per settlement when the longest call is measured. No worker asks for more jobs at
once."""
HOUR_MS = 3_600_000
serial = itertools.count()


def jobs_of(
    count: int, queue: str = QUEUE, *, priorities: bool = False, delay_ms: int = 0
) -> Iterator[NewJob]:
    draw = random.Random(7)  # noqa: S311 - the same each time
    levels = list(Priority) if priorities else [Priority.NORMAL]
    profiles = [profile("send", level) for level in levels]
    for _ in range(count):
        job_id = f"01a1fc7cba24{next(serial):019d}"
        yield NewJob(job_id, queue, draw.choice(profiles), ARGS, delay_ms)


def memory(stage: Stage, jobs: int) -> dict[str, float]:
    """Return two numbers of bytes that a job takes on the server. One is for a waiting job with its events, before a
    mirror has copied them. The other is what is left when the job has ended and its events are mirrored."""
    stage.empty()
    database = Database(str(stage.place / f"memory-{next(serial)}.db"))
    with Client(stage.url) as client:
        # A first life, so that what a queue has once is not counted.
        client.run(client.calls.enqueue.many(jobs_of(1)))
        _live(client)
        _mirror(client, database)
        before = stage.used_memory()
        client.run(client.calls.enqueue.many(jobs_of(jobs)))
        held = stage.used_memory() - before
        while _live(client):
            pass
        _mirror(client, database)
        left = stage.used_memory() - before
        client.run(client.calls.audit.detach(QUEUE, history.audit_id(database)))
    database.close()
    return {"redis_bytes_per_job": held / jobs, "redis_bytes_left_per_job": max(0, left) / jobs}


def _live(client: Client, queue: str = QUEUE) -> int:
    claimed = client.run(claims.claim(queue, WORKER, BATCH)).jobs
    if claimed:
        pairs = [(c.id, c.fence) for c in claimed]
        client.run(claims.complete(queue, WORKER, pairs))
    return len(claimed)


def _mirror(client: Client, database: Database) -> None:
    service.run_mirror(Outbox(client), database, stop=threading.Event(), queues=[QUEUE], once=True)


def depth(stage: Stage, sizes: Sizes) -> dict[str, float]:
    """Return the server's time (µs) for a job's enqueue, claim and completion in queues of several lengths, and the
    worst ratio to an empty queue.

    The waiting jobs have all priorities. Then as many scheduled jobs are added, and the time is measured again. The
    result also has the duration of the longest call.
    """
    stage.empty()
    _watch_long_calls(stage.control)
    queues = {wanted: f"{QUEUE}-{wanted}" for wanted in sizes.depths}
    none, most = sizes.depths[0], sizes.depths[-1]
    figures: dict[str, float] = {}
    with Client(stage.url) as client:
        for wanted, queue in queues.items():
            client.run(client.calls.enqueue.many(jobs_of(wanted, queue, priorities=True)))
        costs = _lives_us(client, list(queues.values()), sizes.probe)
        for wanted, queue in queues.items():
            figures[f"redis_us_at_{wanted}"] = costs[queue]
        worst = max(costs.values()) / costs[queues[none]]
        client.run(client.calls.enqueue.many(jobs_of(most, queues[most], delay_ms=HOUR_MS)))
        costs = _lives_us(client, [queues[none], queues[most]], sizes.probe)
        figures[f"redis_us_at_{most}_scheduled"] = costs[queues[most]]
        worst = max(worst, costs[queues[most]] / costs[queues[none]])
        _call_at_length(client, queues[most])
    figures["depth_ratio"] = worst
    figures["script_max_ms"] = _longest_ms(stage.control)
    return figures


def _lives_us(client: Client, queues: Sequence[str], jobs: int) -> dict[str, float]:
    """Return the server's time (µs) per job in each queue, for a job's enqueue, claim and completion.

    Each time is the median of several rounds. The queues are measured in turn in each round.
    """
    found: dict[str, list[float]] = {queue: [] for queue in queues}
    for number in range(1 + ROUNDS):
        for queue in queues:
            spent = _life_us(client, queue, max(BATCH, jobs // ROUNDS))
            if number:  # the first round is for the caches
                found[queue].append(spent)
    return {queue: statistics.median(each) for queue, each in found.items()}


def _life_us(client: Client, queue: str, jobs: int) -> float:
    """Return the server's time (µs) per job for enqueue, claim and completion.

    As many jobs are claimed as enqueued, so the queue's depth stays the same.
    """
    new = list(jobs_of(jobs, queue, priorities=True))

    def life() -> None:
        for at in range(0, jobs, BATCH):
            client.run(client.calls.enqueue.many(new[at : at + BATCH]))
            _live(client, queue)

    return timed(client, life) / jobs


def _call_at_length(client: Client, queue: str) -> None:
    """Make each call that takes many jobs once, with the highest number of jobs that clients send."""

    def claim() -> list[tuple[str, str]]:
        found = client.run(claims.claim(queue, WORKER, LONG_BATCH)).jobs
        return [(c.id, c.fence) for c in found]

    client.run(claims.extend(queue, WORKER, held := claim()))
    client.run(claims.complete(queue, WORKER, held))
    client.run(claims.fail(queue, WORKER, [(*h, "retry", 1_000, "error", "{}") for h in claim()]))
    client.run(claims.rollback(queue, WORKER, [(*h, "shutdown", "", "", 0) for h in claim()]))
    doomed = list(jobs_of(1_000, queue))
    client.run(client.calls.enqueue.many(doomed))
    client.run(client.calls.admin.cancel(queue, [job.id for job in doomed]))
    client.run(client.calls.caps.set(queue, [("task=send", "1000000", -1)]))


def _watch_long_calls(control: redis.Redis) -> None:
    control.config_set("slowlog-log-slower-than", 200)
    control.config_set("slowlog-max-len", 10_000)
    control.slowlog_reset()


def _longest_ms(control: redis.Redis) -> float:
    """Return the duration (ms) of the longest call of a script. Return 0.2 if all calls were shorter, because Redis
    does not record those."""
    entries: list[dict[str, Any]] = control.slowlog_get(10_000)  # type: ignore[assignment]
    calls = [
        e for e in entries if e["command"].partition(b" ")[0].upper() in (b"FCALL", b"EVALSHA")
    ]
    return max((e["duration"] / 1000 for e in calls), default=0.2)


def idle(stage: Stage, seconds: float) -> dict[str, float]:
    """Return the commands per second that an idle worker with 100 places (jobs at once) sends, and its share of a
    processor (%).

    Commands inside scripts do not count.
    """
    stage.empty()
    path = stage.tally(1)
    with stage.working(OURS, path, concurrency=100) as (process,):
        stage.produce(OURS, "one", path, 1)
        stage.await_jobs(OURS, Tally(path), 1, [process])
        worker = psutil.Process(process.pid)
        seen = 0
        with stage.control.monitor() as monitor:
            connection: Any = monitor.connection
            began, spent = time.monotonic(), sum(worker.cpu_times()[:2])
            while (left := began + seconds - time.monotonic()) > 0:
                if connection.can_read(timeout=left):
                    seen += monitor.next_command()["client_type"] != "lua"
            spent = sum(worker.cpu_times()[:2]) - spent
    return {"idle_commands_per_s": seen / seconds, "idle_cpu_percent": 100 * spent / seconds}
