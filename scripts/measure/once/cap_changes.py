"""Measures a change of a cap for which very many jobs wait: how long the change takes, and how soon a worker claims the
first job.

scripts/measure/once/run cap-changes [--jobs N] [--lanes N] [--engine NAME]
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.keys import queue_keys
from rq_core.model.limits.scopes import lane_name
from rq_core.model.table.machine import Priority
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.claims import Claimed
from tests.kit.reaper import close_reaper
from tests.kit.servers import RedisServer, engines
from tests.rigs.stage import directory, served

QUEUE = "many"
SLOW_US = 1_000


@dataclass
class Change:
    """The measured times of one change of a limit."""

    what: str
    change_ms: float
    first_ms: float
    """The time (ms) until a waiting worker claimed the first job that the change admitted."""
    admitted: int
    """The number of jobs that the waiting worker got in its first successful claim."""
    longest_ms: float
    """The duration (ms) of the longest call of a function since the change, by the server's clock; 0 if all took less
    than 1 ms."""
    drain: str = ""

    def line(self) -> str:
        return (
            f"{self.what}: the change {self.change_ms:.1f} ms, first job after {self.first_ms:.1f} ms"
            f" ({self.admitted} in its claim), longest script call {self.longest_ms:.1f} ms{self.drain}"
        )


def one_lane(jobs: int) -> Iterator[NewJob]:
    lane = lane_name(2, ["task=t"])
    return (_job(n, lane) for n in range(jobs))


def lanes_of_a_scope(jobs: int, lanes: int) -> Iterator[NewJob]:
    """Yield jobs in many lanes (groups that the same caps count). All lanes have the scope of the task, and each has
    its own tenant."""
    return (_job(n, lane_name(2, ["task=t", f"tenant=k{n % lanes}"])) for n in range(jobs))


def lanes_of_a_family(jobs: int, lanes: int) -> Iterator[NewJob]:
    """Yield jobs in many lanes (groups that the same caps count). The only scope of each lane is its tenant."""
    return (_job(n, lane_name(2, [f"tenant=k{n % lanes}"])) for n in range(jobs))


def _job(number: int, lane: str) -> NewJob:
    return NewJob(f"j-{number}", QUEUE, profile("t", Priority.NORMAL), "{}", 0, lane)


class Waiter(threading.Thread):
    """An idle worker in a thread. It waits for a wake token, claims until it gets jobs, and records the time."""

    def __init__(self, server: RedisServer, limit: int) -> None:
        super().__init__()
        self._server = server
        self._limit = limit
        self.ready = threading.Event()
        self.claimed: Claimed | None = None
        self.at = 0.0

    def run(self) -> None:
        with self._server.client() as waiting, Client(self._server.url) as client:
            client.run(client.calls.delivery.handshake(QUEUE))
            claim_call = claims.claim
            self.ready.set()
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                found: Any = waiting.blpop([queue_keys(QUEUE)("wake")], timeout=60)
                if found is None:
                    return
                claimed = client.run(claim_call(QUEUE, "w-idle", self._limit))
                while not claimed.jobs and claimed.more:
                    claimed = client.run(claim_call(QUEUE, "w-idle", self._limit))
                if claimed.jobs:
                    self.claimed, self.at = claimed, time.perf_counter()
                    return


def change(
    server: RedisServer,
    what: str,
    jobs: Iterator[NewJob],
    before: dict[str, str],
    after: tuple[str, str],
    *,
    drain: int = 0,
) -> Change:
    """Fill a queue whose caps are full, change one cap while a worker is idle, and measure when the worker gets a job.

    With ``drain``, continue to claim until this number of jobs is claimed, and measure the time.
    """
    with Client(server.url) as client, server.client(decode_responses=True) as control:
        control.flushall()
        client.run(
            client.calls.caps.set(QUEUE, [(scope, limit, -1) for scope, limit in before.items()])
        )
        client.run(client.calls.enqueue.many(jobs))

        def claim() -> Claimed:
            return client.run(claims.claim(QUEUE, "w-1", 10))

        while claim().more:
            pass
        control.delete(queue_keys(QUEUE)("wake"))
        waiter = Waiter(server, 10)
        waiter.start()
        waiter.ready.wait(10)
        control.config_set("slowlog-log-slower-than", SLOW_US)
        control.config_set("slowlog-max-len", 100_000)
        control.slowlog_reset()
        began = time.perf_counter()
        client.run(client.calls.caps.set(QUEUE, [(*after, -1)]))
        changed = time.perf_counter()
        waiter.join(60)
        assert waiter.claimed is not None, f"{what}: nobody got a job after the change"
        told = ""
        if drain:
            made, count = 0, len(waiter.claimed.jobs)
            while count < drain:
                found = claim()
                made += 1
                count += len(found.jobs)
                assert found.jobs or found.more or found.next_due_ms, f"{what}: {count} claimed"
            seconds = time.perf_counter() - changed
            told = f"; {count:,} claimed in {seconds:.1f} s by {made:,} claims of 10"
        slow: Any = control.slowlog_get(100_000)
        longest = max((e["duration"] for e in slow if "FCALL" in str(e["command"])), default=0)
        return Change(
            what,
            (changed - began) * 1e3,
            (waiter.at - began) * 1e3,
            len(waiter.claimed.jobs),
            longest / 1e3,
            told,
        )


def all_changes(server: RedisServer, jobs: int, lanes: int) -> Iterator[Change]:
    """Yield the measurements of raised and of removed caps, with one lane (group of jobs that the same caps count) and
    with many."""
    drained = min(lanes, 20_000)
    for verb, limit in (("raised to 10", "10"), ("removed", "none")):
        yield change(
            server,
            f"{jobs:,} jobs in one lane, the task's cap of 1 {verb}",
            one_lane(jobs),
            {"task=t": "1"},
            ("task=t", limit),
        )
        yield change(
            server,
            f"{jobs:,} jobs in {lanes:,} lanes of one scope, its cap of 1 {verb}",
            lanes_of_a_scope(jobs, lanes),
            {"task=t": "1", "tenant": "1"},
            ("task=t", limit),
        )
    for limit in ("1", "none"):
        yield change(
            server,
            f"{jobs:,} jobs in {lanes:,} lanes of one family, its cap of 0 changed to {limit}",
            lanes_of_a_family(jobs, lanes),
            {"tenant": "0"},
            ("tenant", limit),
            drain=drained,
        )
    yield first_cap(server, jobs)


def first_cap(server: RedisServer, jobs: int) -> Change:
    """Measure the first cap of a task, which is set while all its jobs wait in a list. Claims then move each job once,
    into a lane (group of jobs that the same caps count).

    One job of another task waits behind these jobs.
    """
    with Client(server.url) as client, server.client(decode_responses=True) as control:
        control.flushall()
        client.run(client.calls.enqueue.many(_job(n, "") for n in range(jobs)))
        client.run(
            client.calls.enqueue.many(
                [_job(jobs, "")._replace(id="beside", profile=profile("other"))]
            )
        )
        control.config_set("slowlog-log-slower-than", SLOW_US)
        control.config_set("slowlog-max-len", 100_000)
        control.slowlog_reset()
        began = time.perf_counter()
        client.run(client.calls.caps.set(QUEUE, [("task=t", "1", -1)]))
        changed = time.perf_counter()
        made, first_at, admitted, ran = 0, 0.0, 0, ""
        while ran != "beside":
            found = client.run(claims.claim(QUEUE, "w-1", 10))
            made += 1
            if found.jobs:
                ran = found.jobs[-1].id
                first_at = first_at or time.perf_counter()
                admitted += len(found.jobs)
            assert found.more or ran == "beside"
        slow: Any = control.slowlog_get(100_000)
        longest = max((e["duration"] for e in slow if "FCALL" in str(e["command"])), default=0)
        return Change(
            f"{jobs:,} plain jobs, their task's first cap set to 1",
            (changed - began) * 1e3,
            (first_at - began) * 1e3,
            admitted - 1,
            longest / 1e3,
            f"; the job of another task behind them ran in claim {made:,},"
            f" after {time.perf_counter() - began:.1f} s",
        )


@click.command()
@click.option("--jobs", default=1_000_000, show_default=True)
@click.option("--lanes", default=100_000, show_default=True)
@click.option("--engine", type=click.Choice([each.name for each in engines()]), default="valkey")
def main(jobs: int, lanes: int, engine: str) -> None:
    """Measure changes of caps for which very many jobs wait, and print the times."""
    with directory() as place, served({e.name: e for e in engines()}[engine], place) as server:
        for found in all_changes(server, jobs, lanes):
            click.echo(found.line())
    close_reaper()


if __name__ == "__main__":
    main()
