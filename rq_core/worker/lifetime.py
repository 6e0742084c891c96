"""The lifetime of a worker: how long it claims, and how long its running jobs may go on after that.

A worker claims until one of three things happens. It is asked to stop. It retires, because it has reached its limit of
jobs or memory. Or it gets an error that will not pass by waiting. Then its running jobs have the grace period to
finish; in a worker that retires, they have unlimited time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rq_core.errors import RqCoreError
from rq_core.model.lib.text import counted
from rq_core.worker.options import WorkerOptions

log = logging.getLogger(__package__)

MEASURE_EVERY_S: Final = 1.0
"""Minimum seconds between two comparisons of this process' memory with ``max_memory``."""
CANCEL_AGAIN_S: Final = 0.1


@dataclass(slots=True)
class WorkerStats:
    """Counts of a worker's jobs since it started."""

    claimed: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    parked: int = 0
    rolled_back: int = 0
    refused: int = 0
    turns: int = 0
    started: float = field(default_factory=time.monotonic)


class Lifetime:
    """Decides how long a worker claims, and how long its running jobs may go on after that."""

    def __init__(self, worker: str, options: WorkerOptions) -> None:
        self.worker = worker
        self.options = options
        self.stats = WorkerStats()
        self.over = asyncio.Event()
        """Set when the worker claims no more."""
        self.on_over: Callable[[], None] = lambda: None
        """Called at each request to claim no more."""
        self.stops = 0
        """Number of times that the worker was asked to stop."""
        self.retired = False
        """True if the worker ends by itself, and another should replace it."""
        self.failure: RqCoreError | None = None
        """The first error that will not pass by waiting, also during the grace period; None: no such error."""
        self.grace_began = asyncio.Event()
        self._grace_over = 0.0
        """Monotonic time at which the grace period is over, once it has begun."""
        self._hurry = asyncio.Event()
        self._measured = 0.0

    def end(self) -> None:
        """Stop claiming."""
        self.over.set()
        self.on_over()

    def stop(self) -> None:
        """Stop claiming, and let jobs finish during the grace period. A second call ends the grace period at once."""
        self.stops += 1
        if self.stops > 1:
            self._hurry.set()
        self._begin_grace()

    def retire(self, why: str) -> None:
        """Stop claiming, and end once all running jobs have finished, however long that takes."""
        if not self.over.is_set():
            log.info("retiring: %s", why, extra={"worker": self.worker})
            self.retired = True
            self.end()

    def retire_if_due(self) -> None:
        """Retire if the worker has claimed ``max_jobs`` jobs, or uses more than ``max_memory``."""
        jobs, memory = self.options.max_jobs, self.options.max_memory
        if jobs is not None and self.stats.claimed >= jobs:
            self.retire(f"{counted(self.stats.claimed, 'job')} claimed")
        elif memory is not None and time.monotonic() - self._measured > MEASURE_EVERY_S:
            self._measured = time.monotonic()
            if (resident := resident_bytes()) > memory:
                self.retire(f"{resident:,} bytes of memory")

    def give_up(self, error: RqCoreError) -> None:
        """Stop claiming and begin the grace period, because of an error that will not pass by waiting."""
        if self.failure is None:
            self.failure = error
            log.error(
                "the worker stops claiming and ends: %s", error, extra={"worker": self.worker}
            )
        self._begin_grace()

    def _begin_grace(self) -> None:
        if not self.grace_began.is_set():
            self._grace_over = time.monotonic() + self.options.grace
            self.grace_began.set()
        self.end()

    def grace_left(self) -> float:
        """Return the seconds that are left of the grace period. Before it begins, return its whole length."""
        if not self.grace_began.is_set():
            return self.options.grace
        return max(0.0, self._grace_over - time.monotonic())

    async def let_end(self, *tasks: asyncio.Task[None]) -> None:
        """Wait until the tasks have ended or the grace period is over. A second request to stop ends the grace
        period."""
        seconds = self.grace_left()
        hurry = asyncio.create_task(self._hurry.wait())
        ended = asyncio.gather(*map(asyncio.shield, tasks), return_exceptions=True)
        try:
            either: set[asyncio.Future[Any]] = {ended, hurry}
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and wait until they have ended.

    Each task is cancelled again until it ends. asyncio.timeout, which redis-py uses, loses a cancellation that comes
    just when a connection attempt ends. Such a task would go on to wait for a server that does not answer.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes.

    On a system without /proc, return its highest value since the process started.
    """
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
