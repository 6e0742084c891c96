"""Kills a worker (SIGKILL) every second while one job waits for very many children in another queue.

A map has at most `CHILDREN_MAX` children. A job that needs more maps *groups*, and each group maps its part of the
children. The mirror is a process of its own. Each run of a child writes its id and its claim into a file.

At the end, the log must explain each run: the claim has succeeded, or its lease has expired. Each child, each group and
the job must have succeeded once, each result must have been saved once, the sum must be right, and ``audit verify``
must hold for both queues.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from typing import Any, Final, Literal, Self

import redis

from rq_core import App, Cap, RetryPolicy, current_job, durable
from rq_core.connections.client import Client
from rq_core.errors import ServerUnavailable
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
"""A file with a line for each run of a child: its id, and the number and the fence of its claim. A process that is
killed leaves no half line, since a line is one write."""
LINE_BYTES: Final = 50
"""The approximate size of a line of RUNS."""
PATIENCE_S: Final = 5.0
"""The maximum time (s) for which a kill waits until enough children have run since the kill before. On a slow machine,
a worker that is killed 3 s after its start has hardly begun to work."""
SUMS: Final = "sums"
"""A file with a line for each run of the job that came to its end: the sum that it computed after its join."""
UNREACHED: Final = "unreached"
"""A file with a line for each start of a worker that did not reach the servers."""
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
MIRROR: Final = "mirror"
_FORKED: Final = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Pace:
    """How workers run the jobs."""

    part_s: float = 0.0
    """The time (s) that a child takes."""
    concurrency: int = CONCURRENCY
    """Number of jobs that a worker runs at the same time."""
    full: bool = False
    """True: the log has all arguments and results, so that lost jobs and their steps can be put back."""


USUAL: Final = Pace()


def app_of(url: str, place: Path, pace: Pace = USUAL) -> tuple[App, Any]:
    """Return an app and its task ``join``, which runs children and writes the sum of their results into a file."""
    app = App(url, audit_payload="full" if pace.full else "digest")
    for queue in (JOINS, PARTS):
        app.queue(queue, lease=LEASE_S)
    runs, sums = (
        os.open(place / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT) for name in (RUNS, SUMS)
    )
    once = RetryPolicy(max_attempts=1)
    logs: Literal["full", "digest"] = "full" if pace.full else "digest"

    @app.task(
        name="part",
        queue=PARTS,
        max_losses=1_000,
        retry=once,
        keep_result=pace.full,
        audit_result=logs,
    )
    async def part(n: int) -> int:
        job = current_job()
        os.write(runs, f"{job.id} {job.claim} {job.fence}\n".encode())
        await asyncio.sleep(pace.part_s)
        return n

    @app.task(
        name="group",
        queue=JOINS,
        max_losses=1_000,
        retry=once,
        keep_result=pace.full,
        audit_result=logs,
        caps=[Cap(GROUPS)],
    )
    async def group(first: int, count: int) -> int:
        parts = await durable().map("parts", (part.call(first + n) for n in range(count)))
        return sum(parts.values())

    @app.task(
        name="join",
        queue=JOINS,
        max_losses=1_000,
        retry=once,
        keep_result=pace.full,
        audit_result=logs,
    )
    async def join(count: int, width: int) -> None:
        job = durable()
        if count <= width:
            found = await job.map("parts", (part.call(n) for n in range(count)))
        else:
            firsts = range(0, count, width)
            calls = [group.call(first, min(width, count - first)) for first in firsts]
            found = await job.map("groups", calls)
        os.write(sums, f"{sum(found.values())}\n".encode())

    return app, join


async def _work(url: str, place: Path, pace: Pace) -> None:
    logging.getLogger("rq_core").setLevel(logging.ERROR)  # Lost leases are expected.
    app, _ = app_of(url, place, pace)
    options = WorkerOptions(queues=(JOINS, PARTS), concurrency=pace.concurrency)
    while True:
        try:
            await Worker(app, options).run()
        except ServerUnavailable as error:
            # A worker that does not reach its servers when it starts ends, and a service manager starts it again.
            with (place / UNREACHED).open("a") as file:
                file.write(f"{error}\n")
        else:
            return


def _run_worker(url: str, place: Path, pace: Pace) -> None:
    asyncio.run(_work(url, place, pace))


class Workers:
    """Worker processes. From time to time, `tick` kills the oldest one.

    Use it in a ``with`` statement. At the end of the block all of them are killed.
    """

    def __init__(
        self,
        url: str,
        place: Path,
        every_s: float,
        count: int,
        *,
        pace: Pace = USUAL,
        context: Any = _FORKED,
        least: int = 0,
    ) -> None:
        """Start ``count`` workers. ``every_s`` is the time (s) between two kills. If fewer than ``least`` children have
        run since the last kill, the next one waits for them, up to PATIENCE_S.
        """
        self.kills = 0
        """Number of workers that `tick` has killed."""
        self._place, self._every_s, self._context = place, every_s, context
        self._args = (url, place, pace)
        self._due: float | None = None
        self._least = least
        self._ran = 0
        """Number of bytes in the file RUNS at the last kill."""
        self._crew = [self._start() for _ in range(count)]

    def _start(self) -> Any:
        process = self._context.Process(target=_run_worker, args=self._args)
        process.start()
        return process

    def tick(self) -> None:
        """Kill the oldest worker if it is time, and start a new one. The first kill comes as soon as a child has run.

        Raises AssertionError if a worker has ended by itself.
        """
        assert all(process.is_alive() for process in self._crew), "a worker has ended by itself"
        now = time.monotonic()
        if self._due is None and (self._place / RUNS).stat().st_size:
            self._due = now
        if self._due is None or now < self._due:
            return
        ran = (self._place / RUNS).stat().st_size
        if ran - self._ran < self._least * LINE_BYTES and now < self._due + PATIENCE_S:
            return
        self._ran = ran
        oldest = self._crew.pop(0)
        oldest.kill()
        oldest.join()
        self.kills += oldest.exitcode == -signal.SIGKILL
        self._crew.append(self._start())
        self._due = max(self._due + self._every_s, now)

    def unreached(self) -> int:
        """Return the number of starts at which a worker did not reach the servers, and started again."""
        file = self._place / UNREACHED
        return len(file.read_text().splitlines()) if file.exists() else 0

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend all workers (SIGSTOP) during the block."""
        for process in self._crew:
            os.kill(process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in self._crew:
                os.kill(process.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._crew:
            process.kill()
            process.join()


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
    app, join = app_of(url, place)
    app.apply_settings()
    lay(audit_url)
    with Crew(place) as mirrors:
        mirrors.knows(MIRROR, lambda: ["tests.kit.mirror_service", url, audit_url])
        mirrors.start(MIRROR)
        # A queue without a mirror keeps only the last entries of its log.
        wait_mirrored(
            "both queues are mirrored", lambda at: {JOINS, PARTS} <= set(at), audit_url, mirrors
        )
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
        wait_mirrored("the log is complete", lambda at: at == last, audit_url, mirrors)
        found.mirrored_s = time.monotonic() - began - found.seconds
        assert [0] == mirrors.stop(MIRROR)
    app.close()
    runs = Counter(line.rpartition(" ")[0] for line in (place / RUNS).read_text().splitlines())
    sums = (place / SUMS).read_text().splitlines()
    _judge(url, audit_url, handle.id, sums, runs, found)
    control.close()
    return found


def lay(audit_url: str) -> None:
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
    with Workers(url, place, every_s, processes) as crew:
        while control.hexists(f"rqc:{{{JOINS}}}:jobs", job_id):
            crew.tick()
            found.kills = crew.kills
            if time.monotonic() > until:
                found.problems.append("the job had not ended in the time that it may take")
                return
            time.sleep(0.02)


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


def wait_mirrored(
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
    url: str, audit_url: str, job_id: str, said: list[str], runs: Counter[str], found: Wide
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
    right = str(sum(range(found.children)))
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
