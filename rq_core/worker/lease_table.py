"""What a worker process holds, in memory that its supervisor can read.

A handler that holds the GIL stops every thread of its process, the heartbeat too. So each worker notes its claims and
its heartbeats in a table that it shares with its supervisor, whose :class:`LeaseGuard` extends the leases of a worker
that is overdue. A reader may meet a row that is just being written: extending a claim that nobody has does nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping
from ctypes import c_char
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any, Final, NamedTuple

from rq_core.connections.client import Client
from rq_core.errors import RqCoreError
from rq_core.model.job import Claim
from rq_core.protocol import claims

log = logging.getLogger(__name__)

_HEAD: Final = struct.Struct("<dd128s")
"""When the heartbeat's thread last ran, its interval, the worker's name."""
_ROW: Final = struct.Struct("<?d128s128s40s")
"""Whether it is in use, until when to extend it (0: as long as it is held), queue, job, fence."""
OVERDUE_INTERVALS: Final = 1.5
"""Intervals after which a heartbeat is overdue: half of a lease."""
STUCK_S_MIN: Final = 10.0
"""Seconds without a heartbeat before a process may be killed; one that waits for Redis is no more than late."""
LOOK_S_MAX: Final = 2.0
LOOK_S_MIN: Final = 0.05
BEGINNING_LOOK_S: Final = 0.1
"""Seconds between two looks while a worker has not begun: only then is it known how long its leases are."""


class Held(NamedTuple):
    """A claim as the table has it. ``until`` is on the monotonic clock."""

    queue: str
    job: str
    fence: str
    until: float | None


class LeaseTable:
    """One worker process' claims. Made by the supervisor, written by the worker."""

    def __init__(self, context: SpawnContext, rows: int) -> None:
        self._memory: Any = context.RawArray(c_char, _HEAD.size + rows * _ROW.size)
        self._rows = rows
        self._free = list(range(rows))
        self._used: dict[tuple[str, str], int] = {}

    # The worker's side; under its keeper's lock.

    def beat(self, worker: str, interval: float) -> None:
        """The heartbeat's thread runs."""
        _HEAD.pack_into(self._memory, 0, time.monotonic(), interval, worker.encode())

    def hold(self, claim: Claim, until: float | None) -> None:
        """Note a claim. One too many is left to the worker's own heartbeat."""
        row = self._used.get((claim.queue, claim.id))
        if row is None:
            if not self._free:
                return
            row = self._used[claim.queue, claim.id] = self._free.pop()
        words = (claim.queue.encode(), claim.id.encode(), claim.fence.encode())
        _ROW.pack_into(self._memory, self._at(row), True, until or 0.0, *words)

    def drop(self, claim: Claim) -> None:
        """Note that a claim has ended."""
        row = self._used.pop((claim.queue, claim.id), None)
        if row is not None:
            self._memory[self._at(row)] = b"\0"
            self._free.append(row)

    # The supervisor's side.

    @property
    def beaten(self) -> tuple[str, float, float]:
        """The worker, when its heartbeat's thread last ran, and its interval. No name: not yet."""
        at, interval, name = _HEAD.unpack_from(self._memory, 0)
        return _text(name), at, interval

    def held(self) -> list[Held]:
        """The claims of the table."""
        found = []
        for row in range(self._rows):
            at = self._at(row)
            if self._memory[at] != b"\0":
                _, until, queue, job, fence = _ROW.unpack_from(self._memory, at)
                found.append(Held(_text(queue), _text(job), _text(fence), until or None))
        return found

    def _at(self, row: int) -> int:
        return _HEAD.size + row * _ROW.size


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("ascii", "replace")


class LeaseGuard:
    """A thread of the supervisor: extends the leases of workers whose own heartbeat is overdue.

    A worker that is stopped (SIGSTOP) is not helped: nobody knows when it goes on. One that is overdue and has a claim
    beyond its time is killed, since nothing in it can end that handler; its jobs run again elsewhere.
    """

    def __init__(
        self,
        client: Client,
        queues: Collection[str],
        tables: Callable[[], Mapping[int, LeaseTable]],
    ) -> None:
        """``tables`` are those of the processes that live, by process id."""
        self._client = client
        self._queues = frozenset(queues)
        self._tables = tables
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rq-core-guard", daemon=True)

    def start(self) -> None:
        """Begin; call once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self._stop.set()
        self._thread.join(timeout=5.0)
        self._client.close()

    def look(self) -> float:
        """Look at all workers once. Returns the seconds until the next look."""
        pause = LOOK_S_MAX
        for pid, table in self._tables().items():
            worker, at, interval = table.beaten
            if not worker:
                pause = min(pause, BEGINNING_LOOK_S)
                continue
            pause = min(pause, interval / 2)
            late = time.monotonic() - at
            if late > OVERDUE_INTERVALS * interval and not _is_stopped(pid):
                self._help(pid, worker, table, late)
        return max(pause, LOOK_S_MIN)

    def _help(self, pid: int, worker: str, table: LeaseTable, late: float) -> None:
        now = time.monotonic()
        held = [each for each in table.held() if each.queue in self._queues]
        over = [each for each in held if each.until is not None and each.until < now]
        if over and late > STUCK_S_MIN:
            log.error(
                "worker %s (process %d) is stuck, and job %s is beyond its time: killing it",
                *(worker, pid, over[0].job),
            )
            os.kill(pid, signal.SIGKILL)
            return
        for queue in {each.queue for each in held}:
            jobs = [(h.job, h.fence) for h in held if h.queue == queue and h not in over]
            if not jobs:
                continue
            try:
                self._client.run(claims.extend(queue, worker, jobs))
            except RqCoreError as error:
                # In a cluster, other queues may well be within reach.
                log.warning("leases of a worker that is overdue were not extended: %s", error)

    def _run(self) -> None:
        pause = LOOK_S_MIN
        while not self._stop.wait(pause):
            try:
                pause = self.look()
            except RqCoreError as error:
                log.warning("leases of a worker that is overdue were not extended: %s", error)
            except Exception:
                log.exception("looking after the leases failed, trying again")


def _is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal, or has ended. Where there is no /proc: no."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TtZX"
    except (FileNotFoundError, ProcessLookupError):
        return Path("/proc/self/stat").exists()
