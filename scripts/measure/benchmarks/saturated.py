"""Measures a busy Redis server while it answers turns of one job each, as from many workers that run one job at a time.
A turn reports the last job and claims the next one.

With a single client, most of a call's cost is that Redis wakes up with cold caches. Here sixteen connections keep Redis
busy: each begins its next turn as soon as it has an answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import redis
from hiredis import pack_command
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis_time import ARGS, spent_us

from rq_core.connections.client import Client
from rq_core.connections.connection import Connection
from rq_core.connections.connection_options import source_of
from rq_core.model.job import NewJob, profile
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls import claims
from rq_core.scripts.script import function

WORKERS = 16
QUEUE = "saturated"


class _Worker:
    """A worker without a handler that runs one job at a time. Each turn reports the last job and claims the next one.

    It builds its commands itself, because Python must spend less time on a turn than Redis does.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        keys = queue_keys(QUEUE)
        self._connection = connection
        turn, call = function("turn"), claims.turn(QUEUE, name, 1, ())
        self._parse = call.parse
        self._begin = (*turn.head(keys), f"{name}.turn.1")
        self._args = [call.args[arg] for arg in turn.args[2:]]
        self._number = 0
        self._held: Sequence[str] = ()

    def ask(self) -> None:
        """Send a request that settles the last job and claims the next job."""
        self._number += 1
        self._connection.send(pack_command((*self._begin, self._number, *self._args, *self._held)))

    def hear(self) -> None:
        """Receive the answer to the last request, and keep the claimed job's id and fence."""
        replies: list[Any] = []
        self._connection.receive(1, replies)
        (reply,) = replies
        if isinstance(reply, Exception) or reply[0] != "ok":
            raise RuntimeError(f"a turn was answered {reply!r}")
        (job,) = self._parse(reply[1:]).jobs
        self._held = job.id, job.fence


def measure(client: Client, turns: int) -> dict[str, float]:
    """Return Redis' µs per turn, the turns per second, and Redis' load (%). The first two are valid only if the load is
    high."""
    _fill(client, turns + 3 * WORKERS)
    source = source_of(redis.ConnectionPool, client.url, Retry(NoBackoff(), 0), 10.0)
    connections = [Connection(source) for _ in range(WORKERS)]
    try:
        for connection in connections:
            connection.connect()
        workers = [_Worker(connection, f"w-{n}") for n, connection in enumerate(connections)]
        for worker in workers:
            worker.ask()
        _go_round(workers, WORKERS)
        spent, began = spent_us(client), time.monotonic()
        _go_round(workers, turns)
        took, spent = time.monotonic() - began, spent_us(client) - spent
        for worker in workers:
            worker.hear()
    finally:
        for connection in connections:
            connection.disconnect()
    return {
        "redis_us_turn_saturated": spent / turns,
        "redis_turns_saturated_per_s": turns / took,
        "redis_busy_percent_saturated": spent / took / 1e4,
    }


def _go_round(workers: list[_Worker], turns: int) -> None:
    """Make ``turns`` turns, one worker after another. The requests of the other workers wait at Redis meanwhile."""
    for turn in range(turns):
        worker = workers[turn % len(workers)]
        worker.hear()
        worker.ask()


def _fill(client: Client, jobs: int) -> None:
    made = profile("t")
    client.run(
        client.calls.enqueue.many(NewJob(f"j-{n:032}", QUEUE, made, ARGS) for n in range(jobs))
    )
    # So that no worker has to load the script first.
    client.run(claims.turn(QUEUE, "w-0", 0, ()))
