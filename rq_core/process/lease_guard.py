"""The supervisor's thread that extends the leases of workers whose heartbeat is overdue, and kills stuck workers."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from rq_core.connections.client import Client
from rq_core.errors import RqCoreError
from rq_core.process.process_exit import has_ended, is_stopped
from rq_core.protocol.calls import claims
from rq_core.worker.liveness.heartbeat import BEATS_IN_LEASE
from rq_core.worker.liveness.lease_table import LeaseTable

log = logging.getLogger(__name__)

OVERDUE_INTERVALS: Final = 1.5
"""Number of heartbeat intervals after which a heartbeat is overdue. A lease lasts three intervals, so this is half of
a lease."""


STUCK_S_MIN: Final = 10.0
"""Minimum seconds without a heartbeat before a process may be killed. The heartbeat of a process that waits for Redis
is late by a shorter time."""


LOOK_S_MAX: Final = 2.0


LOOK_S_MIN: Final = 0.05


BEGINNING_LOOK_S: Final = 0.1
"""Seconds between two checks while a worker has not begun and the length of its leases is unknown."""


class LeaseGuard:
    """A thread of the supervisor that extends the leases of workers whose own heartbeat is overdue.

    The thread does not extend the leases of a worker that a signal has stopped (SIGSTOP), because this worker may never
    continue. When these leases are over, the thread logs an error.

    The thread kills a worker that has had no heartbeat for STUCK_S_MIN seconds, if a job of the worker still runs 30 s
    after the job's timeout. Nothing in the worker's own process can end the handler of such a job. The jobs of the
    worker then run again elsewhere.
    """

    def __init__(
        self,
        client: Client,
        queues: Collection[str],
        tables: Callable[[], Mapping[int, LeaseTable]],
    ) -> None:
        """Create the thread without starting it. ``tables`` returns the lease table of each live worker process, by
        process id: the jobs that the worker runs, and its last heartbeat.
        """
        self._client = client
        self._queues = frozenset(queues)
        self._tables = tables
        self._stopped: set[int] = set()
        """Ids of the stopped processes for which the error was logged."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rq-core-guard", daemon=True)

    def start(self) -> None:
        """Start the thread. It can be started only once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, wait until it has ended, and close the client."""
        self._stop.set()
        self._thread.join(timeout=5.0)
        self._client.close()

    def look(self) -> float:
        """Check all workers once. Returns the seconds until the next check."""
        pause = LOOK_S_MAX
        tables = self._tables()
        self._stopped &= tables.keys()
        for pid, table in tables.items():
            worker, at, interval = table.beaten
            if not worker:
                pause = min(pause, BEGINNING_LOOK_S)
                continue
            pause = min(pause, interval / 2)
            late = time.monotonic() - at
            if late <= OVERDUE_INTERVALS * interval:
                if pid in self._stopped:
                    self._stopped.discard(pid)
                    log.warning("worker %s (process %d) goes on after a stop", worker, pid)
                continue
            if is_stopped(pid):
                self._tell_of_stop(pid, worker, late, BEATS_IN_LEASE * interval)
            elif not has_ended(pid):
                self._help(pid, worker, table, late)
        return max(pause, LOOK_S_MIN)

    def _tell_of_stop(self, pid: int, worker: str, late: float, lease: float) -> None:
        """Log an error, once, if a worker has been stopped for longer than a lease. ``late`` and ``lease`` are in
        seconds."""
        if late <= lease or pid in self._stopped:
            return
        self._stopped.add(pid)
        log.error(
            "worker %s (process %d) has been stopped (SIGSTOP) for %.0f s, longer than its leases: its jobs run again"
            " elsewhere. Let it go on with `kill -CONT %d`, or end it with `kill -KILL %d`",
            *(worker, pid, late, pid, pid),
        )

    def _help(self, pid: int, worker: str, table: LeaseTable, late: float) -> None:
        now = time.monotonic()
        held = [each for each in table.held() if each.queue in self._queues]
        over = [each for each in held if each.until is not None and each.until < now]
        if over and late > STUCK_S_MIN:
            log.error(
                "worker %s (process %d) is stuck, and job %s has run past its timeout: killing the process",
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
                # In a cluster, the shards of other queues may answer.
                log.warning(
                    "the leases of a worker without a heartbeat were not extended: %s", error
                )

    def _run(self) -> None:
        pause = LOOK_S_MIN
        while not self._stop.wait(pause):
            try:
                pause = self.look()
            except RqCoreError as error:
                log.warning(
                    "the leases of a worker without a heartbeat were not extended: %s", error
                )
            except Exception:
                log.exception("checking the leases failed, trying again")
