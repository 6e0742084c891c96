"""Sets the demo's stage: the server, the worker processes, the mirror, the kill, and the check at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, func, select

from rq_core.client import Client
from rq_core.keys import queue_keys, queues_key
from rq_core.machine import CLAIMED_STATES
from rq_core.operations import read_state_line
from sql_audit.demo import tasks
from sql_audit.schema import job_event

LEASE_S: Final = 2.0
WAKE_S: Final = 5.0
"""The longest that an idle worker sleeps."""
PATIENCE_S: Final = 300.0
"""How long the demo waits for anything before it says that it failed."""


_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


class DemoFailed(Exception):
    """The demo could not be carried out, or what it found does not agree."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo found; ``problems`` is empty if all agrees."""

    files: int
    succeeded: int
    dead: int
    lease_expired: int
    events: int
    digest_mismatches: int
    duplicates: int
    """Files that were hashed twice, because the worker that had done them was killed before it could say so."""
    seconds: float
    again_ms: int
    """The longest time from the kill until a job of the killed worker was claimed again."""
    problems: tuple[str, ...]

    def line(self) -> str:
        """The one line of ``--json``."""
        return json.dumps(
            {
                "files": self.files,
                "succeeded": self.succeeded,
                "dead": self.dead,
                "lease_expired": self.lease_expired,
                "events": self.events,
                "digest_mismatches": self.digest_mismatches,
                "duplicates": self.duplicates,
                "seconds": round(self.seconds, 2),
            }
        )


def find_files(root: Path) -> list[Path]:
    """The regular, readable files below a directory. Left out is what a running Python or pip may rewrite meanwhile:
    byte code, and packages that were installed below the standard library."""
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
    """The processes of one demo, on one queue."""

    client: Client
    redis_url: str
    audit_url: str
    queue: str
    witness: Path
    log: Path

    @contextlib.contextmanager
    def mirror(self) -> Iterator[None]:
        """The mirror, attached to the queue, while the body runs. It is ended last: it has the others' last words
        to write down."""
        tasks.app.connect_to(self.redis_url)
        tasks.app.queue(self.queue, lease=LEASE_S)
        tasks.app.apply_settings()
        process = self._start("sql_audit.run", "--audit", self.audit_url, "--queue", self.queue)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not self.client.counts(self.queue).audit:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise DemoFailed(f"the mirror does not start; see {self.log}")
                time.sleep(0.02)
            yield
        finally:
            _end(process)

    @contextlib.contextmanager
    def crew(self, workers: int) -> Iterator[list[subprocess.Popen[bytes]]]:
        """The worker processes, while the body runs."""
        crew = [self._start_worker() for _ in range(workers)]
        try:
            yield crew
        finally:
            for process in crew:
                _end(process)

    def enqueue(self, files: list[Path], told: Callable[[int], None]) -> list[str]:
        """One job per file; the ids in the order of the files."""
        send = tasks.digest.with_options(queue=self.queue)
        ids: list[str] = []
        for start in range(0, len(files), 500):
            chunk = files[start : start + 500]
            ids += tasks.app.enqueue_many(send.job(path=path) for path in chunk).ids
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
                [sys.executable, "-m", module, *arguments, "--redis", self.redis_url],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, tasks.WITNESS_VARIABLE: str(self.witness)},
                start_new_session=True,
            )

    def now_ms(self) -> int:
        """The server's time (Unix ms), the only clock that counts."""
        ((seconds, micros),) = self.client.run(self.client.operations.ask([["TIME"]]))
        return int(seconds) * 1000 + int(micros) // 1000

    def left(self) -> int:
        """Jobs that are not finished."""
        counts = self.client.counts(self.queue)
        return sum(counts.ready.values()) + counts.waiting + counts.scheduled + counts.running

    def finished(self, total: int) -> int:
        """Jobs that are finished, dead ones included."""
        return total - self.left()

    def kill_one(self, crew: list[subprocess.Popen[bytes]]) -> tuple[int, int]:
        """End a worker with SIGKILL while it holds claims. Returns its pid and how many it held."""
        victim = crew[0]
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            # Stopped first, so that what it holds now is what it holds when it dies.
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
        lines = self.client.snapshot(self.queue)["state"]
        states = (read_state_line(self.queue, i, line) for i, line in lines.items())
        return sum(
            state.state in CLAIMED_STATES and state.fields["by"].startswith(f"w-{pid}-")
            for state in states
        )

    def wait_until_done(self, total: int, told: Callable[[int], None], until: int) -> None:
        """Wait until ``until`` of ``total`` jobs are finished."""
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
        """Remove the demo's queue from Redis; its history stays in SQL."""
        keys = queue_keys(self.queue).all()
        self.client.run(
            self.client.operations.ask([["DEL", *keys], ["SREM", queues_key(), self.queue]])
        )


@dataclass(frozen=True, slots=True)
class Deed:
    """What was done: which files as which jobs, how long it took, and when a worker was killed (Unix ms)."""

    files: list[Path]
    ids: list[str]
    seconds: float
    killed_at_ms: int


def judge(engine: Engine, queue: str, deed: Deed, witness: Path) -> Outcome:
    """Compare three records: the files themselves, what the jobs witnessed, and SQL."""
    files, ids = deed.files, deed.ids
    seen: dict[str, list[dict[str, Any]]] = {}
    for line in witness.read_text().splitlines() if witness.exists() else []:
        entry = json.loads(line)
        seen.setdefault(entry["path"], []).append(entry)
    mismatches = 0
    for path in files:
        sha, lines = tasks.digest_of(path)
        entries = seen.get(str(path), [])
        if not entries or any(e["sha256"] != sha or e["lines"] != lines for e in entries):
            mismatches += 1
    duplicates = sum(len(entries) - 1 for entries in seen.values())

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
    again_ms = (again_at or deed.killed_at_ms) - deed.killed_at_ms
    problems = []
    if again_ms > (LEASE_S + WAKE_S) * 1000:
        problems.append(
            f"a job of the killed worker waited {again_ms} ms, longer than a lease and a wake"
        )
    if mismatches:
        problems.append(f"{mismatches} files have another digest than the jobs saw, or none")
    if missing := [i for i in ids if succeeded.get(i, 0) != 1]:
        problems.append(f"{len(missing)} jobs do not have exactly one succeeded event in SQL")
    if strangers := set(succeeded) - set(ids):
        problems.append(f"SQL knows {len(strangers)} jobs that nobody enqueued")
    if not events["lease_expired"]:
        problems.append("no lease expired, though a worker was killed while it held claims")
    if len(seen) != len(files):
        problems.append(f"{len(seen)} of {len(files)} files were witnessed")
    return Outcome(
        files=len(files),
        succeeded=sum(succeeded.values()),
        dead=events["died"],
        lease_expired=events["lease_expired"],
        events=sum(events.values()),
        digest_mismatches=mismatches,
        duplicates=duplicates,
        seconds=deed.seconds,
        again_ms=again_ms,
        problems=tuple(problems),
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
