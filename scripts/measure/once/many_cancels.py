"""Measures a cancel of half of a queue's jobs by their task, beside a drain, and the first claim afterwards.

    scripts/measure/once/run many-cancels [--jobs 2000000] [--engine NAME] [--small]

The jobs to cancel are the first half of one list, so that afterwards the list begins with an entry for each job that is
gone. A drain in another process claims and completes jobs of a higher priority, and enqueues a new job for each
completed job. The command fails if a call takes more than 10 ms of the server, if the drain beside the cancel reaches
less than 75 % of the drain alone, or if the first claim afterwards takes more than a second. ``--small`` measures
20,000 jobs, and checks none of these limits.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import click

from rq_core.connections.client import Client
from rq_core.model.filters.job_filter import Filter
from rq_core.model.ids import JobIds
from rq_core.model.job import Claim, NewJob, profile
from rq_core.model.table.machine import Priority
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.bulk import CANCEL, BulkChange
from tests.kit.reaper import close_reaper
from tests.kit.servers import RedisServer, engines
from tests.rigs.stage import directory, served

QUEUE: Final = "many"
SLOW_US: Final = 2_000
"""The duration (µs) from which the server notes a command. A note costs the server time, too."""
COMMAND_MS_MAX: Final = 10.0
DRAIN_MIN: Final = 0.75
FIRST_S_MAX: Final = 1.0
ALONE_S: Final = 5.0
CLAIMS: Final = 50
"""The number of jobs in one claim of the drain."""
BACKLOG: Final = {"backlog_max_jobs": 100_000_000, "backlog_max_bytes": 100_000_000_000}
"""Bounds of the log that no run reaches, since no mirror copies it."""

ids = JobIds()


@dataclass
class Figures:
    """The measured values of one cancel."""

    jobs: int
    cancelled: int
    looked: int
    seconds: float
    """The time (s) that the cancel took."""
    longest_ms: float
    """The longest command during the cancel, as the server measured it."""
    alone: float
    """The number of jobs per second that the drain completes before and after the cancel."""
    beside: float
    """The number of jobs per second that the drain completes while the cancel runs."""
    first_s: float
    """The time (s) of the claims after the cancel until one got a job that is not a job of the drain."""
    first_claims: int
    """The number of claims after the cancel until one got a job that is not a job of the drain."""
    first_longest_ms: float
    """The duration (ms) of the longest command after the cancel and the drain, as the server measured it."""

    @property
    def failures(self) -> list[str]:
        found = []
        if max(self.longest_ms, self.first_longest_ms) > COMMAND_MS_MAX:
            found.append(f"a call took {max(self.longest_ms, self.first_longest_ms):.1f} ms")
        if self.beside < DRAIN_MIN * self.alone:
            found.append(f"the drain reached {self.beside / self.alone:.0%} of the drain alone")
        if self.first_s > FIRST_S_MAX:
            found.append(f"the first claim came after {self.first_s:.2f} s")
        return found


def plain(count: int, task: str, priority: Priority = Priority.NORMAL) -> Iterator[NewJob]:
    made = profile(task, priority)
    return (NewJob(ids(), QUEUE, made, '{"n":1}') for _ in range(count))


def drain(url: str) -> None:
    """Claim and complete jobs until standard input ends, and enqueue a new job for each job of the task "drained".
    Print the time and the number of jobs so far after each line of standard input."""
    import threading

    count, stopped = 0, threading.Event()

    def report() -> None:
        for _ in sys.stdin:
            print(json.dumps([time.monotonic(), count]), flush=True)
        stopped.set()

    threading.Thread(target=report, daemon=True).start()
    with Client(url) as client:
        while not stopped.is_set():
            held = client.run(claims.claim(QUEUE, "w-1", CLAIMS)).jobs
            high = [claim for claim in held if '"drained"' in claim.spec]
            client.run(claims.complete(QUEUE, "w-1", [(c.id, c.fence) for c in held]))
            client.run(client.calls.enqueue.many(plain(len(high), "drained", Priority.HIGH)))
            count += len(held)


class Drain:
    """A process that claims and completes jobs of the queue, and counts them."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "--drain", url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.mark()

    def mark(self) -> tuple[float, int]:
        """Return the time (s), and the number of jobs that the drain has completed so far."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        at, count = json.loads(self._process.stdout.readline())
        return at, count

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def rate(before: tuple[float, int], after: tuple[float, int]) -> float:
    return (after[1] - before[1]) / max(after[0] - before[0], 1e-9)


def longest_ms(control: Any) -> float:
    """Return the duration of the longest command since the last reset of the server's list of slow commands."""
    slow = control.slowlog_get(1_000_000)
    control.slowlog_reset()
    return max((each["duration"] for each in slow), default=0) / 1e3


def measure(
    server: RedisServer, jobs: int, alone_s: float = ALONE_S, slow_us: int = SLOW_US
) -> Figures:
    """Fill a queue, and cancel its first half."""
    with Client(server.url) as client, server.client(decode_responses=True) as control:
        control.flushall()
        client.run(client.calls.audit.attach(QUEUE, "none"))
        client.run(client.calls.admin.configure(QUEUE, BACKLOG))
        client.run(client.calls.enqueue.many(plain(jobs // 2, "cancelled")))
        client.run(client.calls.enqueue.many(plain(jobs - jobs // 2, "kept")))
        client.run(client.calls.enqueue.many(plain(20 * CLAIMS, "drained", Priority.HIGH)))
        control.config_set("slowlog-log-slower-than", slow_us)
        control.config_set("slowlog-max-len", 1_000_000)
        drained = Drain(server.url)
        try:
            marks = [drained.mark()]
            time.sleep(alone_s)
            marks.append(drained.mark())
            longest_ms(control)
            began = time.perf_counter()
            change = BulkChange(CANCEL, Filter(queue=QUEUE, task="cancelled"), reason="measured")
            made = client.run(client.calls.bulk.run(change))
            seconds = time.perf_counter() - began
            marks.append(drained.mark())
            longest = longest_ms(control)
            time.sleep(alone_s)
            marks.append(drained.mark())
        finally:
            drained.close()
        longest_ms(control)
        left, count, took = True, 0, 0.0
        while left:
            began = time.perf_counter()
            claimed: Sequence[Claim] = ()
            tries = 0
            while not claimed:
                claimed = client.run(claims.claim(QUEUE, "w-2", CLAIMS)).jobs
                tries += 1
            if '"drained"' in claimed[-1].spec:
                continue
            left, count, took = False, tries, time.perf_counter() - began
        alone = (rate(marks[0], marks[1]) + rate(marks[2], marks[3])) / 2
        return Figures(
            jobs, made.changed, made.looked, seconds, longest, alone, rate(marks[1], marks[2]), took, count,
            longest_ms(control),
        )  # fmt: skip


@click.command()
@click.option("--jobs", default=2_000_000, show_default=True, type=click.IntRange(1_000))
@click.option("--engine", "engine_name", default=None)
@click.option("--small", is_flag=True)
@click.option("--drain", "drain_url", hidden=True)
def main(jobs: int, engine_name: str | None, drain_url: str | None, *, small: bool) -> None:
    """Print the figures of one cancel. The exit status is 1 if a limit is exceeded."""
    if drain_url is not None:
        drain(drain_url)
        return
    engine = next(e for e in engines() if engine_name in (None, e.name))
    with directory() as place, served(engine, place) as server:
        found = measure(server, 20_000 if small else jobs, 0.5 if small else ALONE_S)
    print(json.dumps(asdict(found)))
    if not small and found.failures:
        close_reaper()
        sys.exit("; ".join(found.failures))
    close_reaper()


if __name__ == "__main__":
    main()
