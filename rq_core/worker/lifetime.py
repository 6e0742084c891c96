"""How long a worker claims, and how long what it runs may go on after that.

It claims until it is asked to stop, has done its share (it retires), or is refused for good. Then what runs has its
grace; of a worker that retires, all the time that it needs.
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
"""Seconds between two looks at the memory of this process."""
CANCEL_AGAIN_S: Final = 0.1


@dataclass(slots=True)
class WorkerStats:
    """Counts of a worker's jobs since it started."""

    claimed: int = 0
    completed: int = 0
    failed: int = 0
    rolled_back: int = 0
    refused: int = 0
    turns: int = 0
    started: float = field(default_factory=time.monotonic)


class Lifetime:
    """From a worker's first claim to the end of its grace."""

    def __init__(self, worker: str, options: WorkerOptions) -> None:
        self.worker = worker
        self.options = options
        self.stats = WorkerStats()
        self.over = asyncio.Event()
        """Whether it claims no more."""
        self.on_over: Callable[[], None] = lambda: None
        """Called whenever it is said to be over."""
        self.stops = 0
        """The number of times that it was asked to stop."""
        self.retired = False
        """Whether it ends by itself, and another should take its place."""
        self.failure: RqCoreError | None = None
        """The error that ended it although it was not asked to stop."""
        self.grace_began = asyncio.Event()
        self._grace_over = 0.0
        """When the grace is over, on the monotonic clock, once it has begun."""
        self._hurry = asyncio.Event()
        self._measured = 0.0

    def end(self) -> None:
        """Claim no more."""
        self.over.set()
        self.on_over()

    def stop(self) -> None:
        """Claim no more; let jobs finish for the grace time. A second call ends the grace now."""
        self.stops += 1
        if self.stops > 1:
            self._hurry.set()
        self._begin_grace()

    def retire(self, why: str) -> None:
        """Claim no more and end when what runs has finished, however long that takes."""
        if not self.over.is_set():
            log.info("retiring: %s", why, extra={"worker": self.worker})
            self.retired = True
            self.end()

    def retire_if_due(self) -> None:
        """Retire when the worker has had its share of jobs, or has more memory than it may."""
        jobs, memory = self.options.max_jobs, self.options.max_memory
        if jobs is not None and self.stats.claimed >= jobs:
            self.retire(f"{counted(self.stats.claimed, 'job')} claimed")
        elif memory is not None and time.monotonic() - self._measured > MEASURE_EVERY_S:
            self._measured = time.monotonic()
            if (resident := resident_bytes()) > memory:
                self.retire(f"{resident:,} bytes of memory")

    def give_up(self, error: RqCoreError) -> None:
        """End as if asked to: waiting does not mend such an error."""
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
        """Seconds; all of it if it has not begun."""
        if not self.grace_began.is_set():
            return self.options.grace
        return max(0.0, self._grace_over - time.monotonic())

    async def let_end(self, *tasks: asyncio.Task[None]) -> None:
        """Wait for tasks for what is left of the grace, or until a second signal ends it."""
        seconds = self.grace_left()
        hurry = asyncio.create_task(self._hurry.wait())
        ended = asyncio.gather(*map(asyncio.shield, tasks), return_exceptions=True)
        try:
            either: set[asyncio.Future[Any]] = {ended, hurry}
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended.

    Again and again: a cancellation that meets the end of a connection attempt is lost (in asyncio.timeout, and so in
    redis-py), and the task would go on waiting for a server that is away.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)


def resident_bytes() -> int:
    """Memory of this process that is resident; where there is no /proc, the most that ever was."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
