"""The environment of benchmarks: a Redis server of their own, and contenders (benchmarked libraries) in processes with
a time limit."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from contender import Tally
from delaying import delayed

from tests.kit.servers import Engine, RedisServer, engines

HERE = Path(__file__).parent / "contenders"
START_S = 20.0
PART_S = 120.0
"""The default time limit (s) for each part of a contender's benchmark."""


class Failed(RuntimeError):
    """The error for a contender's process that ended by itself or exceeded its time limit. If it ended, the message has
    its last output."""


@dataclass(frozen=True)
class Contender:
    """How to run a library in the benchmark: its script, and the Python interpreter that has the library installed."""

    name: str
    script: Path
    python: str = sys.executable
    kinds: tuple[str, ...] = ("async",)
    """The kinds of handlers that the library has."""
    concurrency: int = 100
    environment: Mapping[str, str] = field(default_factory=dict)
    part_s: float = PART_S


OURS = Contender("rq-core", HERE / "ours.py", kinds=("async", "threads"))
BARE = Contender("bare", HERE / "bare.py")


class Stage:
    """The environment of a benchmark: a server that is emptied before each measurement, and a directory for files."""

    def __init__(self, place: Path, server: RedisServer | None, url: str) -> None:
        self.place = place
        self.server = server
        self.url = url
        self.control: redis.Redis = redis.Redis.from_url(url, decode_responses=True)
        self._made = 0

    def empty(self) -> None:
        self.control.flushall()

    @contextlib.contextmanager
    def far(self, round_trip_ms: float) -> Iterator[None]:
        """Let producers and workers reach the server through a proxy during the block. The proxy delays each direction
        by half of ``round_trip_ms``."""
        near = self.url
        try:
            with delayed(near, round_trip_ms / 2000) as self.url:
                yield
        finally:
            self.url = near

    def version(self) -> str:
        info: Any = self.control.info("server")
        name = "Valkey" if "valkey_version" in info else "Redis"
        return f"{name} {info.get('valkey_version', info['redis_version'])}"

    def used_memory(self) -> int:
        info: Any = self.control.info("memory")
        return int(info["used_memory"])

    def tally(self, jobs: int) -> Path:
        """Return a new file that records the times of ``jobs`` jobs."""
        self._made += 1
        path = self.place / f"tally-{self._made}"
        Tally(path, jobs)
        return path

    def _environment(
        self,
        contender: Contender,
        tally: Path,
        kind: str,
        concurrency: int | None,
        more: Mapping[str, str],
    ) -> dict[str, str]:
        return {
            **os.environ,
            **contender.environment,
            "BENCH_REDIS": self.url,
            "BENCH_TALLY": str(tally),
            "BENCH_KIND": kind,
            "BENCH_CONCURRENCY": str(concurrency or contender.concurrency),
            **more,
        }

    def produce(
        self, contender: Contender, part: str, tally: Path, jobs: int, kind: str = "async"
    ) -> dict[str, float]:
        """Run a producer, and return the figures that it measured. Raises Failed."""
        with self._started(contender, [part, "--jobs", str(jobs)], tally, kind) as process:
            try:
                said, _ = process.communicate(timeout=contender.part_s)
            except subprocess.TimeoutExpired:
                raise Failed(f"{part} took more than {contender.part_s:.0f} s") from None
            if process.returncode:
                raise Failed(f"{part}: {_last_words(self.log(contender))}")
        found: dict[str, float] = json.loads(said.splitlines()[-1])
        return found

    @contextlib.contextmanager
    def working(
        self,
        contender: Contender,
        tally: Path,
        kind: str = "async",
        *,
        workers: int = 1,
        concurrency: int | None = None,
        more: Mapping[str, str] | None = None,
    ) -> Iterator[list[subprocess.Popen[str]]]:
        """Run workers of a contender during the block, and yield their processes."""
        with contextlib.ExitStack() as stack:
            yield [
                stack.enter_context(
                    self._started(contender, ["work"], tally, kind, concurrency, more or {})
                )
                for _ in range(workers)
            ]

    def await_jobs(
        self,
        contender: Contender,
        tally: Tally,
        jobs: int,
        workers: Sequence[subprocess.Popen[str]],
        seconds: float | None = None,
    ) -> list[float]:
        """Wait until all jobs have begun. Return the times at which they began, in order. Raises Failed."""
        patience = time.monotonic() + (seconds or contender.part_s)
        while len(moments := tally.moments()) < jobs:
            if all(worker.poll() is not None for worker in workers):
                raise Failed(f"the worker ended: {_last_words(self.log(contender))}")
            if time.monotonic() > patience:
                raise Failed(f"{len(moments)} of {jobs} jobs began in {contender.part_s:.0f} s")
            time.sleep(0.05)
        return sorted(moments)

    def log(self, contender: Contender) -> Path:
        return self.place / f"{contender.name}.log"

    @contextlib.contextmanager
    def _started(
        self,
        contender: Contender,
        words: Sequence[str],
        tally: Path,
        kind: str,
        concurrency: int | None = None,
        more: Mapping[str, str] | None = None,
    ) -> Iterator[subprocess.Popen[str]]:
        with self.log(contender).open("ab") as sink:
            process = subprocess.Popen(
                [contender.python, str(contender.script), *words],
                env=self._environment(contender, tally, kind, concurrency, more or {}),
                cwd=contender.script.parent,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if words[0] != "work" else sink,
                stderr=sink,
                text=True,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            _end(process)
            if process.stdout is not None:
                process.stdout.close()


def _end(process: subprocess.Popen[str]) -> None:
    """End the process of a contender with SIGTERM. After at most 5 s, kill it and the processes that it has started."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    # Its children are in its session; the leader's number stays taken while one of them lives.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(5)


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"


@contextlib.contextmanager
def stage(url: str | None = None, engine: str | None = None) -> Iterator[Stage]:
    """Yield a Stage with a server that stores nothing on disk: Redis if it is installed, otherwise Valkey.

    Raises SystemExit if ``url`` names a server that has data, because the server is emptied.
    """
    place = Path(tempfile.mkdtemp(prefix="rq-core-bench-"))
    server: RedisServer | None = None
    try:
        if url is None:
            server = RedisServer(_engine(engine), place).start()
            url = server.url
        made = Stage(place, server, url)
        try:
            if made.control.dbsize():
                raise SystemExit(
                    f"error: {url} has data, and would be emptied: give an empty server"
                )
            yield made
        finally:
            made.control.close()
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(place, ignore_errors=True)


def _engine(name: str | None) -> Engine:
    found = {each.name: each for each in engines()}
    if name is None:
        return found.get("redis7") or found["valkey"]
    if name not in found:
        raise SystemExit(f"error: there is no {name} here; there is: {', '.join(found)}")
    return found[name]
