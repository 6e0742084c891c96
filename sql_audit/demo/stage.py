"""The parts of the demo: starts the mirror and the worker processes, kills a worker, and compares the records."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, case, func, select

from rq_core.app.task import Task
from rq_core.connections.client import Client
from rq_core.model.keys import queue_keys, queues_key
from rq_core.model.lib.url import AUDIT_URL_VARIABLE, REDIS_URL_VARIABLE
from rq_core.model.state_line import read_state_line
from rq_core.model.table.machine import CLAIMED_STATES
from sql_audit.demo import tasks
from sql_audit.store.schema.tables import OUTCOMES, job_event

LEASE_S: Final = 2.0
WAKE_S: Final = 5.0
"""Maximum seconds that an idle worker sleeps."""
COMPRESS_SIZE_MAX: Final = 2_000_000
PATIENCE_S: Final = 300.0
"""Seconds that the demo waits for any step before it fails."""


_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


class DemoFailed(Exception):
    """The demo could not be carried out."""


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """The findings of the demo; ``problems`` is empty if all records agree."""

    files: int
    succeeded: int
    dead: int
    lease_expired: int
    events: int
    digest_mismatches: int
    duplicates: int
    """Number of files that were hashed twice: the killed worker had hashed them, but had not yet reported success."""
    seconds: float
    again_ms: int
    """The longest time from the kill until a job of the killed worker was claimed again (ms)."""
    compressed: int
    """Number of larger files that the capped task compressed."""
    size: int
    packed: int
    """The total size of the larger files after compression, in bytes. ``size`` is their size before."""
    compressing: int
    """The highest number of claims of the capped task that were in force at once, according to the log in SQL."""
    problems: tuple[str, ...]

    def line(self) -> str:
        """Return the line that ``--json`` prints."""
        return json.dumps(
            {
                "files": self.files,
                "succeeded": self.succeeded,
                "dead": self.dead,
                "lease_expired": self.lease_expired,
                "events": self.events,
                "digest_mismatches": self.digest_mismatches,
                "duplicates": self.duplicates,
                "compressed": self.compressed,
                "compressing": self.compressing,
                "seconds": round(self.seconds, 2),
            }
        )


def larger(files: list[Path]) -> list[Path]:
    """Return the files to compress: the largest 5 % of the files, but at least 10.

    Files over COMPRESS_SIZE_MAX bytes are left out: one such file would take seconds.
    """
    sizes = {path: path.stat().st_size for path in files}
    fit = [path for path in files if sizes[path] <= COMPRESS_SIZE_MAX]
    return sorted(fit, key=sizes.__getitem__)[-max(10, len(files) // 20) :]


def find_files(root: Path) -> list[Path]:
    """Return the regular, readable files below a directory, sorted by path.

    Byte code and installed packages are left out, because Python or pip may rewrite these files during the demo.
    """
    return sorted(
        path
        for path in root.rglob("*")
        if path.suffix != ".pyc"
        and not _INSTALLED.intersection(path.relative_to(root).parts)
        and path.is_file()
        and os.access(path, os.R_OK)
    )


@dataclass(slots=True)
class Stage:
    """The processes of one demo (mirror, workers, web page), and its queue."""

    client: Client
    redis_url: str
    audit_url: str
    queue: str
    witness: Path
    log: Path

    @contextlib.contextmanager
    def mirror(self) -> Iterator[None]:
        """Run the mirror, which copies events from Redis to SQL, as a process during the block. The block begins when
        the queue's audit log is on.

        End the workers before the block ends, so that the mirror copies their last events.
        """
        tasks.app.connect_to(self.redis_url)
        tasks.app.queue(self.queue, lease=LEASE_S)
        tasks.app.apply_settings()
        process = self._start("rq_core.cli", "audit", "run", "--queue", self.queue)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not self.client.run(self.client.calls.reads.counts(self.queue)).audit:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise DemoFailed(f"the mirror does not start; see {self.log}")
                time.sleep(0.02)
            yield
        finally:
            _end(process)

    @contextlib.contextmanager
    def crew(self, workers: int) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Start ``workers`` worker processes, yield them, and end them after the block."""
        crew = [self._start_worker() for _ in range(workers)]
        try:
            yield crew
        finally:
            for process in crew:
                _end(process)

    @contextlib.contextmanager
    def page(self, listen: str) -> Iterator[subprocess.Popen[bytes]]:
        """Serve the web page during the block."""
        process = self._start("rq_core.cli", "web", "--listen", listen)
        try:
            yield process
        finally:
            _end(process)

    def enqueue(
        self, task: Task[..., Any], files: list[Path], told: Callable[[int], None]
    ) -> list[str]:
        """Enqueue one job per file, and return the jobs' ids in the order of the files.

        The callback gets the number of jobs of each chunk after the chunk is enqueued.
        """
        ids: list[str] = []
        for start in range(0, len(files), 500):
            chunk = files[start : start + 500]
            ids += tasks.app.enqueue_many(task.job(path=path) for path in chunk).ids
            told(len(chunk))
        tasks.app.close()
        return ids

    def _start_worker(self) -> subprocess.Popen[bytes]:
        return self._start(
            "rq_core.cli", "worker", "sql_audit.demo.tasks:app",
            "--queues", self.queue, "--concurrency", "8", "--grace", "10",
        )  # fmt: skip

    def _start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    REDIS_URL_VARIABLE: self.redis_url,
                    AUDIT_URL_VARIABLE: self.audit_url,
                    tasks.WITNESS_VARIABLE: str(self.witness),
                    tasks.QUEUE_VARIABLE: self.queue,
                },
                start_new_session=True,
            )

    def now_ms(self) -> int:
        """Return the time of Redis' clock (Unix ms); events have times of this clock."""
        ((seconds, micros),) = self.client.run(self.client.calls.delivery.ask([["TIME"]]))
        return int(seconds) * 1000 + int(micros) // 1000

    def left(self) -> int:
        """Return the number of jobs in the queue that are not finished."""
        counts = self.client.run(self.client.calls.reads.counts(self.queue))
        return sum(counts.ready.values()) + counts.waiting + counts.scheduled + counts.running

    def finished(self, total: int) -> int:
        """Return the number of finished jobs, dead jobs included, out of ``total`` enqueued jobs."""
        return total - self.left()

    def kill_one(self, crew: list[subprocess.Popen[bytes]]) -> tuple[int, int]:
        """Kill a worker process with SIGKILL while it holds claims. Return its pid and the number of claims that it
        held.

        Raise DemoFailed if no claim was held before the jobs were done.
        """
        victim = crew[0]
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            # The worker is stopped first, so that it dies with the claims that are counted now.
            victim.send_signal(signal.SIGSTOP)
            held = self._held_by(victim.pid)
            if held:
                victim.kill()
                victim.wait()
                return victim.pid, held
            victim.send_signal(signal.SIGCONT)
            if not self.left():
                break
            time.sleep(0.005)
        raise DemoFailed(
            "the work was done before a worker could be killed; give --path more files"
        )

    def _held_by(self, pid: int) -> int:
        # A claimed job has its line in `state`.
        lines = self.client.run(self.client.calls.reads.snapshot(self.queue))["state"]
        states = (read_state_line(self.queue, i, line) for i, line in lines.items())
        return sum(
            state.state in CLAIMED_STATES and state.fields["by"].startswith(f"w-{pid}-")
            for state in states
        )

    def wait_until_done(self, total: int, told: Callable[[int], None], until: int) -> None:
        """Wait until ``until`` of ``total`` jobs are finished. The callback gets the number of finished jobs.

        Raise DemoFailed after PATIENCE_S seconds.
        """
        deadline = time.monotonic() + PATIENCE_S
        while (done := self.finished(total)) < until:
            told(done)
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"only {done} of {total} jobs finished in {PATIENCE_S:g} s; see {self.log}"
                )
            time.sleep(0.05)
        told(done)

    def forget(self) -> None:
        """Delete the demo's queue from Redis. Its history stays in SQL."""
        keys = queue_keys(self.queue).all()
        self.client.run(
            self.client.calls.delivery.ask([["DEL", *keys], ["SREM", queues_key(), self.queue]])
        )


@dataclass(frozen=True, slots=True)
class Deed:
    """The work that the demo has done. ``ids`` are the jobs' ids, in the order of ``files``."""

    files: list[Path]
    ids: list[str]
    larger: list[Path]
    """The larger files: the capped task compresses them, and other jobs hash them."""
    larger_ids: list[str]
    seconds: float
    killed_at_ms: int


def compare_records(engine: Engine, queue: str, deed: Deed, witness: Path) -> DemoOutcome:
    """Compare three records: the files, the witness file that the jobs wrote, and SQL. Return the findings."""
    files, ids = deed.files, deed.ids
    hashed: dict[str, list[dict[str, Any]]] = {}
    packed: dict[str, dict[str, Any]] = {}
    for line in witness.read_text().splitlines() if witness.exists() else []:
        entry = json.loads(line)
        if entry["task"] == tasks.compress.name:
            packed[entry["path"]] = entry
        else:
            hashed.setdefault(entry["path"], []).append(entry)
    mismatches = 0
    for path in files:
        sha, lines = tasks.file_digest(path)
        entries = hashed.get(str(path), [])
        if not entries or any(e["sha256"] != sha or e["lines"] != lines for e in entries):
            mismatches += 1

    with engine.connect() as connection:
        about = job_event.c.queue == queue
        per_type = connection.execute(
            select(job_event.c.type, func.count()).where(about).group_by(job_event.c.type)
        )
        events: Counter[str] = Counter({row[0]: row[1] for row in per_type})
        per_job = connection.execute(
            select(job_event.c.job_id, func.count())
            .where(about, job_event.c.type == "succeeded")
            .group_by(job_event.c.job_id)
        )
        succeeded: dict[str, int] = {row[0]: row[1] for row in per_job}
        lost = select(job_event.c.job_id).where(about, job_event.c.type == "lease_expired")
        again_at = connection.execute(
            select(func.max(job_event.c.at_ms)).where(
                about, job_event.c.type == "claimed", job_event.c.job_id.in_(lost)
            )
        ).scalar()
        compressing = most_at_once(connection, queue, tasks.compress.name)
    outcome = DemoOutcome(
        files=len(files),
        succeeded=sum(succeeded.get(i, 0) for i in ids),
        dead=events["died"],
        lease_expired=events["lease_expired"],
        events=sum(events.values()),
        digest_mismatches=mismatches,
        duplicates=sum(len(entries) - 1 for entries in hashed.values()),
        seconds=deed.seconds,
        again_ms=(again_at or deed.killed_at_ms) - deed.killed_at_ms,
        compressed=len(packed),
        size=sum(entry["size"] for entry in packed.values()),
        packed=sum(entry["packed"] for entry in packed.values()),
        compressing=compressing,
        problems=(),
    )
    return replace(outcome, problems=tuple(_problems(outcome, deed, succeeded, len(hashed))))


def most_at_once(connection: Connection, queue: str, task: str) -> int:
    """Return the highest number of claims of a task that were in force at the same time, computed from the events in
    SQL.
    """
    of_task = select(job_event.c.job_id).where(
        job_event.c.queue == queue, job_event.c.type == "enqueued", job_event.c.task == task
    )
    running = func.sum(case((job_event.c.type == "claimed", 1), else_=-1)).over(
        order_by=[job_event.c.epoch, job_event.c.seq, job_event.c.ordinal]
    )
    counted = (
        select(running.label("running"))
        .where(
            job_event.c.queue == queue,
            job_event.c.job_id.in_(of_task),
            job_event.c.type.in_(["claimed", *OUTCOMES]),
        )
        .subquery()
    )
    return connection.execute(select(func.max(counted.c.running))).scalar() or 0


def _problems(
    outcome: DemoOutcome, deed: Deed, succeeded: Mapping[str, int], witnessed: int
) -> Iterator[str]:
    """Yield a sentence for each contradiction between the records."""
    ids = [*deed.ids, *deed.larger_ids]
    if outcome.again_ms > (LEASE_S + WAKE_S) * 1000:
        yield f"a job of the killed worker waited {outcome.again_ms} ms, longer than a lease and a wake"
    if outcome.digest_mismatches:
        yield f"{outcome.digest_mismatches} files have another digest than the jobs saw, or none"
    if missing := [i for i in ids if succeeded.get(i, 0) != 1]:
        yield f"{len(missing)} jobs do not have exactly one succeeded event in SQL"
    if strangers := set(succeeded) - set(ids):
        yield f"SQL has {len(strangers)} jobs that the demo did not enqueue"
    if not outcome.lease_expired:
        yield "no lease expired, though a worker was killed while it held claims"
    if witnessed != outcome.files:
        yield f"{witnessed} of {outcome.files} files were witnessed"
    if outcome.compressed != len(deed.larger):
        yield f"{outcome.compressed} of {len(deed.larger)} larger files were compressed"
    if outcome.compressing > tasks.COMPRESS_CAP:
        yield (
            f"{outcome.compressing} jobs of {tasks.compress.name} ran at once, over their cap of"
            f" {tasks.COMPRESS_CAP}"
        )
    if not outcome.compressing:
        yield f"SQL knows no claim of {tasks.compress.name}"


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
