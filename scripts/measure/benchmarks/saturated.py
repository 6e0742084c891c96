"""Redis under turns of one: what a fleet of workers with one place each asks of it, when it is never idle.

A call of one client alone costs Redis mostly a wake-up, and caches that are cold by then. Sixteen connections, each of
which reports its last job and claims the next as soon as it is answered, keep Redis busy, as many workers do.
"""

from __future__ import annotations

import time
from typing import Any

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis_time import ARGS, spent_us

from rq_core.connections.client import Client
from rq_core.connections.line import Line
from rq_core.connections.source import source_of
from rq_core.model.job import NewJob, profile
from rq_core.protocol import claims
from rq_core.protocol.claims import Claimed
from rq_core.protocol.delivery import Begun
from rq_core.protocol.plan import Call

WORKERS = 16
QUEUE = "saturated"


class _Worker:
    """A worker with one place and no handler: it asks for a job, and reports it with the next question."""

    def __init__(self, client: Client, line: Line, name: str) -> None:
        self._delivery = client.calls.delivery
        self._line = line
        self._name = name
        self._held: list[tuple[str, str]] = []
        self._asked: list[tuple[Call[Any], Begun]] = []

    def ask(self) -> None:
        """Send a turn."""
        calls: list[Call[Any]] = [claims.claim(QUEUE, self._name, 1)]
        if self._held:
            calls.insert(0, claims.complete(QUEUE, self._name, self._held))
        self._asked = [(call, self._delivery.begin(call)) for call in calls]
        commands = [hiredis.pack_command(tuple(begun.command)) for _, begun in self._asked]
        self._line.send(b"".join(commands))

    def hear(self) -> None:
        """Receive what it was answered."""
        replies: list[Any] = []
        self._line.receive(len(self._asked), replies)
        for (call, begun), reply in zip(self._asked, replies, strict=True):
            if isinstance(reply, Exception) or reply[0] != "ok":
                raise RuntimeError(f"{call.script} was answered {reply!r}")
            self._delivery.end(call.script, call.queue, begun)
            answer = call.parse(reply[1:])
            if isinstance(answer, Claimed):
                self._held = [(job.id, job.fence) for job in answer.jobs]


def measure(client: Client, turns: int) -> dict[str, float]:
    """µs of Redis per turn, turns a second, and how busy Redis was, which makes the others meaningful if it is high."""
    _fill(client, turns + 3 * WORKERS)
    source = source_of(redis.ConnectionPool, client.url, Retry(NoBackoff(), 0), 10.0)
    lines = [Line(source) for _ in range(WORKERS)]
    try:
        for line in lines:
            line.connect()
        workers = [_Worker(client, line, f"w-{n}") for n, line in enumerate(lines)]
        for worker in workers:
            worker.ask()
        _go_round(workers, WORKERS)
        spent, began = spent_us(client), time.monotonic()
        _go_round(workers, turns)
        took, spent = time.monotonic() - began, spent_us(client) - spent
        for worker in workers:
            worker.hear()
    finally:
        for line in lines:
            line.disconnect()
    return {
        "redis_us_turn_saturated": spent / turns,
        "redis_turns_saturated_per_s": turns / took,
        "redis_busy_percent_saturated": spent / took / 1e4,
    }


def _go_round(workers: list[_Worker], turns: int) -> None:
    """So many turns. While one worker is heard, the others' questions wait at Redis."""
    for turn in range(turns):
        worker = workers[turn % len(workers)]
        worker.hear()
        worker.ask()


def _fill(client: Client, jobs: int) -> None:
    made = profile("t")
    client.run(
        client.calls.enqueue.many(NewJob(f"j-{n:032}", QUEUE, made, ARGS) for n in range(jobs))
    )
    # So that no call has to load its script first.
    client.run(claims.complete(QUEUE, "w-0", []))
    client.run(claims.claim(QUEUE, "w-0", 0))
