"""Kills a worker (SIGKILL) every second while one job waits for very many children in another queue.

A map has at most `CHILDREN_MAX` children. A job that needs more maps *groups*, and each group maps its part of the
children. The mirror is a process of its own. Each run of a child writes its id and the number of its claim into a file.

At the end, the log must explain each run: the claim has succeeded, or its lease has expired. Each child, each group and
the job must have succeeded once, each result must have been saved once, the sum must be right, and ``audit verify``
must hold for both queues.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import redis

from rq_core import App, Cap, RetryPolicy, current_job, durable
from rq_core.connections.client import Client
from rq_core.model.durable.children import CHILDREN_MAX
from rq_core.worker import Worker, WorkerOptions
from sql_audit.proof.event_details import facts_in
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.schemas import lay_schema
from tests.kit.wait import wait_until
from tests.rigs.chaos.records import read_cursors
from tests.rigs.chaos.stage import audit_verify, last_of
from tests.rigs.stage import Crew

JOINS: Final = "joins"
"""The queue of the job that waits, and of its groups."""
PARTS: Final = "parts"
"""The queue of the children."""
LEASE_S: Final = 2.0
RUNS: Final = "runs"
"""A file with a line for each run of a child: its id, and the number of its claim. A process that is killed leaves no
half line, since a line is one write."""
SUMS: Final = "sums-of-parts"
"""A list in Redis: the sum that each run of the job computed after its join."""
CONCURRENCY: Final = 50
GROUPS: Final = 8
"""Number of groups that run at the same time; groups that are parked do not count. A run of a group enqueues all its
children, or looks at all of them. If all groups did so at the same time, few would come to the end before the kill."""
SLOW_US: Final = 2_000
"""The duration (µs) from which the server notes a command."""
SCRIPT_MS: Final = 10.0
"""The duration (ms) above which the output counts a script."""
MIRRORED_S: Final = 600.0
"""The maximum time (s) for which the run waits for the mirror."""
VERIFIED_S: Final = 1_800.0
"""The maximum time (s) for ``audit verify``."""
_MIRROR: Final = "mirror"
_FORKED: Final = multiprocessing.get_context("fork")


def _app(url: str, place: Path) -> tuple[App, Any]:
    """Return an app and its task ``join``, which runs children and stores the sum of their results in Redis."""
    app = App(url)
    for queue in (JOINS, PARTS):
        app.queue(queue, lease=LEASE_S)
    control: Any = redis.Redis.from_url(url)
    runs = os.open(place / RUNS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    once = RetryPolicy(max_attempts=1)

    @app.task(name="part", queue=PARTS, max_losses=1_000, retry=once)
    async def part(n: int) -> int:
        job = current_job()
        os.write(runs, f"{job.id} {job.claim}\n".encode())
        return n

    @app.task(name="group", queue=JOINS, max_losses=1_000, retry=once, caps=[Cap(GROUPS)])
    async def group(first: int, count: int) -> int:
        parts = await durable().map("parts", (part.call(first + n) for n in range(count)))
        return sum(parts.values())

    @app.task(name="join", queue=JOINS, max_losses=1_000, retry=once)
    async def join(count: int, width: int) -> None:
        job = durable()
        if count <= width:
            found = await job.map("parts", (part.call(n) for n in range(count)))
        else:
            firsts = range(0, count, width)
            calls = [group.call(first, min(width, count - first)) for first in firsts]
            found = await job.map("groups", calls)
        control.rpush(SUMS, sum(found.values()))

    return app, join


async def _work(url: str, place: Path) -> None:
    logging.getLogger("rq_core").setLevel(logging.ERROR)  # Lost leases are expected.
    app, _ = _app(url, place)
    await Worker(app, WorkerOptions(queues=(JOINS, PARTS), concurrency=CONCURRENCY)).run()


def _run_worker(url: str, place: Path) -> None:
    asyncio.run(_work(url, place))


@dataclass
class Wide:
    """The figures of a run, and the problems that the run found."""

    children: int
    groups: int
    """Number of jobs between the job and its children; 0: the job has one map with all children."""
    kills: int = 0
    seconds: float = 0.0
    """The time from the enqueue of the job until its end."""
    mirrored_s: float = 0.0
    """The time after the end until the log had everything."""
    verified_s: float = 0.0
    tail_s: float = 0.0
    """The time from the last success of a child until that of the job. If a worker is killed before it has reported the
    end of a child, the parent finds this end only when it looks by itself."""
    runs: int = 0
    lost_runs: int = 0
    """Number of runs of children whose claim was lost by the log."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of events of both queues, by type."""
    calls: int = 0
    """Number of calls of scripts."""
    call_us: float = 0.0
    """The mean duration of a call of a script (µs), by the server's clock."""
    longest: list[tuple[float, str]] = field(default_factory=list)
    """The longest calls by the server's clock (SLOWLOG): ms and script. The clock also counts the time in which the
    server waits for a processor."""
    slow: int = 0
    """Number of calls noted above `SCRIPT_MS`."""
    server_s: tuple[float, float] = (0.0, 0.0)
    """The time (s) in which the server ran on a processor, and the time in which it waited for one."""
    memory_mb: float = 0.0
    load: float = 0.0
    """The machine's load average at the end."""
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the figures as text."""
        kinds = ("parked", "woken", "signalled", "lease_expired")
        longest = ", ".join(f"{ms:.1f} ms {name}" for ms, name in self.longest[:3]) or "none noted"
        return (
            f"{self.children:,} children in {self.groups or 'no'} groups: {self.seconds:.0f} s,"
            f" {self.children / self.seconds:,.0f} children a second, {self.kills} kills; the last child ended"
            f" {self.tail_s:.1f} s before the job\n"
            f"{self.runs:,} runs of children, {self.lost_runs:,} of claims that were lost;"
            f" {', '.join(f'{self.counts[kind]:,} {kind}' for kind in kinds)}\n"
            f"log complete {self.mirrored_s:.0f} s later, verified in {self.verified_s:.0f} s\n"
            f"{self.calls:,} calls of scripts, {self.call_us:,.0f} µs each; longest by SLOWLOG: {longest};"
            f" {self.slow} above {SCRIPT_MS:.0f} ms\n"
            f"Redis ran for {self.server_s[0]:.0f} s, waited for a processor for {self.server_s[1]:.0f} s, and took"
            f" {self.memory_mb:,.0f} MB; load {self.load:.1f}\n"
            f"{len(self.problems)} problems"
        )


def kill(
    url: str,
    audit_url: str,
    place: Path,
    count: int,
    *,
    width: int = CHILDREN_MAX,
    every_s: float = 1.0,
    processes: int = 3,
    seconds_max: float = 3_600.0,
) -> Wide:
    """Let one job run ``count`` children, and kill the oldest worker every ``every_s`` seconds until the job has ended.

    ``audit_url`` names an empty database. A map has at most ``width`` children. ``place`` is a directory for files.
    """
    found = Wide(count, 0 if count <= width else -(-count // width))
    control: Any = redis.Redis.from_url(url, decode_responses=True)
    control.config_set("slowlog-log-slower-than", SLOW_US)
    control.config_set("slowlog-max-len", 100_000)
    app, join = _app(url, place)
    app.apply_settings()
    _lay(audit_url)
    with Crew(place) as mirrors:
        mirrors.knows(_MIRROR, lambda: ["tests.kit.mirror_service", url, audit_url])
        mirrors.start(_MIRROR)
        # A queue without a mirror keeps only the last entries of its log.
        _wait("both queues are mirrored", lambda at: {JOINS, PARTS} <= set(at), audit_url, mirrors)
        control.slowlog_reset()
        control.config_resetstat()
        scheduled = _scheduled_s(control)
        began = time.monotonic()
        handle = join.enqueue(count, width)
        _kill_until_end(
            url, place, control, handle.id, found, every_s, processes, began + seconds_max
        )
        found.seconds = time.monotonic() - began
        ran, waited = _scheduled_s(control)
        found.server_s = ran - scheduled[0], waited - scheduled[1]
        _measure(control, found)
        with Client(url) as client:
            last = {queue: last_of(client, queue) for queue in (JOINS, PARTS)}
        _wait("the log is complete", lambda at: at == last, audit_url, mirrors)
        found.mirrored_s = time.monotonic() - began - found.seconds
        assert [0] == mirrors.stop(_MIRROR)
    app.close()
    runs = Counter((place / RUNS).read_text().splitlines())
    _judge(url, audit_url, handle.id, control, runs, found)
    control.close()
    return found


def _lay(audit_url: str) -> None:
    database = Database(audit_url)
    lay_schema(database)
    database.close()


def _kill_until_end(
    url: str,
    place: Path,
    control: Any,
    job_id: str,
    found: Wide,
    every_s: float,
    processes: int,
    until: float,
) -> None:
    """Run workers until the job has left Redis. Kill the oldest as soon as a child has run, and then every ``every_s``
    seconds. Start a new one at once."""

    def start() -> Any:
        process = _FORKED.Process(target=_run_worker, args=(url, place))
        process.start()
        return process

    crew = [start() for _ in range(processes)]
    try:
        due = until
        while control.hexists(f"rqc:{{{JOINS}}}:jobs", job_id):
            assert all(process.is_alive() for process in crew), "a worker has ended by itself"
            if time.monotonic() > until:
                found.problems.append("the job had not ended in the time that it may take")
                return
            if due == until and (place / RUNS).stat().st_size:
                due = time.monotonic()
            if time.monotonic() >= due:
                oldest = crew.pop(0)
                oldest.kill()
                oldest.join()
                found.kills += oldest.exitcode == -signal.SIGKILL
                crew.append(start())
                due += every_s
            time.sleep(0.02)
    finally:
        for process in crew:
            process.kill()
            process.join()


def _scheduled_s(control: Any) -> tuple[float, float]:
    """Return the time (s) in which the server's main thread ran, and the time in which it waited for a processor."""
    pid = control.info("server")["process_id"]
    ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def _measure(control: Any, found: Wide) -> None:
    """Read from the server how long the scripts took."""
    stats = control.info("commandstats").get("cmdstat_fcall", {})
    found.calls, found.call_us = int(stats.get("calls", 0)), float(stats.get("usec_per_call", 0.0))
    calls = [each for each in control.slowlog_get(100_000) if b"FCALL" in _raw(each["command"])[:6]]
    found.longest = sorted(
        ((each["duration"] / 1e3, _raw(each["command"]).split()[1].decode()) for each in calls),
        reverse=True,
    )
    found.slow = sum(ms > SCRIPT_MS for ms, _ in found.longest)
    found.memory_mb = int(control.info("memory")["used_memory_peak"]) / 1e6
    found.load = os.getloadavg()[0]


def _raw(command: str | bytes) -> bytes:
    return command.encode() if isinstance(command, str) else command


def _wait(
    what: str, is_true: Callable[[dict[str, tuple[int, int]]], bool], audit_url: str, mirrors: Crew
) -> None:
    """Wait until ``is_true`` returns True for the positions up to which SQL has the queues' logs."""
    database = Database(audit_url)
    try:
        wait_until(
            lambda: is_true(read_cursors(database)),
            lambda: f"{what}: {mirrors.end_of_log()}",
            timeout=MIRRORED_S,
        )
    finally:
        database.close()


def _judge(
    url: str, audit_url: str, job_id: str, control: Any, runs: Counter[str], found: Wide
) -> None:
    """Compare the log of both queues with the runs of the children, and verify the log."""
    database = Database(audit_url)
    rows = partial(auditlog.rows, database)
    try:
        for row in rows("SELECT type, COUNT(*) AS n FROM job_event GROUP BY type"):
            found.counts[row["type"]] = row["n"]
        ends = "SELECT job_id, COUNT(*) AS n FROM job_event WHERE queue = :q AND type = 'succeeded' GROUP BY job_id"
        at_ms = "SELECT MAX(at_ms) AS at_ms FROM job_event WHERE queue = :q AND type = 'succeeded'"
        last, end = (rows(at_ms, q=queue)[0]["at_ms"] or 0 for queue in (PARTS, JOINS))
        found.tail_s = (end - last) / 1e3
        joins, parts = rows(ends, q=JOINS), rows(ends, q=PARTS)
        claims = {
            f"{row['job_id']} {row['claim']}": row["outcome"]
            for row in rows(
                "SELECT job_id, claim, outcome FROM job_attempt WHERE queue = :q", q=PARTS
            )
        }
        saved = Counter(
            (row["job_id"], facts_in(row["detail"])["name"])
            for row in rows("SELECT job_id, detail FROM job_event WHERE type = 'step_saved'")
        )
    finally:
        database.close()
    found.problems += _wrong_ends("children", parts, found.children)
    found.problems += _wrong_ends("jobs that join", joins, 1 + found.groups)
    if job_id not in {row["job_id"] for row in joins}:
        found.problems.append("the job has not succeeded")
    found.runs = runs.total()
    found.lost_runs = sum(claims.get(each) == "lease_expired" for each in runs)
    found.problems += wrong_runs(runs, claims)
    results = [count for (_, name), count in saved.items() if "=" in name]
    if set(results) != {1} or len(results) != found.children + found.groups:
        found.problems.append(f"{len(results):,} results were saved {sum(results):,} times")
    said, right = control.lrange(SUMS, 0, -1), str(sum(range(found.children)))
    if set(said) != {right}:
        found.problems.append(f"the job says {said}, not {right}")
    began = time.monotonic()
    verified = audit_verify(url, audit_url, timeout=VERIFIED_S)
    found.verified_s = time.monotonic() - began
    if verified["verdict"] != "holds" or verified["violations"]:
        found.problems.append(f"verify says {verified['verdict']}: {verified['violations'][:3]}")


def _wrong_ends(what: str, rows: Sequence[Mapping[str, Any]], count: int) -> Iterator[str]:
    """Yield what is wrong with the successes: ``rows`` has each job that succeeded, and how many times."""
    times = sum(row["n"] for row in rows)
    if len(rows) != count or times != count:
        yield f"{len(rows):,} {what} succeeded {times:,} times, not {count:,} once each"


def wrong_runs(runs: Mapping[str, int], claims: Mapping[str, str]) -> Iterator[str]:
    """Yield each run of a child that the log does not explain, and each success without a run.

    Both mappings have the child's id and the number of its claim. ``runs`` has the number of runs, and ``claims`` the
    outcome of the claim in the log.
    """
    for each, times in runs.items():
        if times != 1:
            yield f"claim {each} ran {times} times"
        if claims.get(each) not in ("succeeded", "lease_expired"):
            yield f"the log says of claim {each}, which ran: {claims.get(each)}"
    for each in (claim for claim, outcome in claims.items() if outcome == "succeeded"):
        if each not in runs:
            yield f"claim {each} succeeded and did not run"
