"""Worker processes of the live tasks, and what their jobs witnessed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.processes import Child, worker
from tests.kit.wait import wait_until
from tests.rigs.judge.caps import Mark, at_once
from tests.rigs.live import tasks


@dataclass
class Crew:
    """Worker processes on one server."""

    url: str
    place: Path
    lease: float = tasks.LONG_LEASE_S
    concurrency: int = 10

    def __post_init__(self) -> None:
        self.witness = self.place / "witness.jsonl"
        self.log = self.place / "workers.log"
        self.processes: list[Child] = []

    def start(self, queues: Sequence[str]) -> Child:
        process = worker(
            "tests.rigs.live.tasks:app",
            queues,
            self.url,
            *("--concurrency", str(self.concurrency), "--grace", "2"),
            log=self.log,
            variables={tasks.WITNESS: str(self.witness), tasks.QUEUE_LEASE: str(self.lease)},
        )
        self.processes.append(process)
        return process

    def started(self) -> int:
        """How many workers have said that they began."""
        return self.log.read_text().count("worker started") if self.log.exists() else 0

    def wait_started(self, count: int) -> None:
        wait_until(
            lambda: self.started() >= count,
            lambda: f"{count} workers run: {self.log.read_text()[-2000:]}",
            timeout=60,
        )

    def kill(self, process: Child) -> None:
        """SIGKILL, stopped or not."""
        process.close()
        if process in self.processes:
            self.processes.remove(process)

    def close(self) -> None:
        for process in list(self.processes):
            self.kill(process)

    def lines(self) -> list[dict[str, Any]]:
        if not self.witness.exists():
            return []
        return [json.loads(line) for line in self.witness.read_text().splitlines()]


@contextlib.contextmanager
def crew(
    url: str, place: Path, queues: Sequence[str], processes: int, **options: Any
) -> Iterator[Crew]:
    """Worker processes that work during the block."""
    made = Crew(url, place, **options)
    try:
        for _ in range(processes):
            made.start(queues)
        made.wait_started(processes)
        yield made
    finally:
        made.close()


def peaks(lines: Sequence[dict[str, Any]]) -> dict[str, int]:
    """The highest number that ran at once, by queue, as the jobs witnessed it."""
    marks = [
        Mark(line["at"], 1 if line["what"] == "start" else -1, line["queue"], line["job"])
        for line in lines
    ]
    most: dict[str, int] = {}
    for mark, running in at_once(marks):
        most[mark.scope] = max(most.get(mark.scope, 0), running)
    return most
