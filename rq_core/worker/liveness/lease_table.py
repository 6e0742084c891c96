"""The leases of a worker process, in memory that its supervisor can read.

A handler that holds the GIL stops every thread of its process, the heartbeat too. So each worker writes its claims and
heartbeats into a table that it shares with its supervisor. If a heartbeat is overdue, the supervisor's guard
(:mod:`rq_core.process.lease_guard`) extends the leases. The guard may read a half-written row, and ask Redis to extend
a claim that no worker holds. This has no effect.
"""

from __future__ import annotations

import struct
import time
from ctypes import c_char
from multiprocessing.context import SpawnContext
from typing import Any, Final, NamedTuple

from rq_core.model.job import Claim

_HEAD: Final = struct.Struct("<dd128s")
"""The struct at the beginning of the table: the monotonic time at which the heartbeat's thread last ran, its interval
in seconds, and the worker's name."""
_END: Final = struct.Struct("<?i")
"""The struct about the end of the worker: whether its work is over, and the exit status that its process will have."""
_ROWS_AT: Final = _HEAD.size + _END.size
_ROW: Final = struct.Struct("<?d128s128s40s")
"""The struct of one row: whether the row is in use, the monotonic time up to which to extend the lease (0: no limit),
queue, job, and fence (which identifies the claim)."""


class HeldLease(NamedTuple):
    """One claim in the table of leases. ``until``: monotonic time up to which the lease is extended; None: without a
    limit.
    """

    queue: str
    job: str
    fence: str
    until: float | None


class LeaseTable:
    """The claims of one worker process whose leases must be extended. The supervisor creates the table; the worker
    writes it.
    """

    def __init__(self, context: SpawnContext, rows: int) -> None:
        self._memory: Any = context.RawArray(c_char, _ROWS_AT + rows * _ROW.size)
        self._rows = rows
        self._free = list(range(rows))
        self._used: dict[tuple[str, str], int] = {}

    # The worker's side, under the lock of its lease keeper.

    def beat(self, worker: str, interval: float) -> None:
        """Store the time of this heartbeat, the interval (seconds) and the worker's name."""
        _HEAD.pack_into(self._memory, 0, time.monotonic(), interval, worker.encode())

    def hold(self, claim: Claim, until: float | None) -> None:
        """Add a claim to the table. If the table is full, leave the claim out: then the supervisor cannot extend its
        lease, only the worker's heartbeat can."""
        row = self._used.get((claim.queue, claim.id))
        if row is None:
            if not self._free:
                return
            row = self._used[claim.queue, claim.id] = self._free.pop()
        words = (claim.queue.encode(), claim.id.encode(), claim.fence.encode())
        _ROW.pack_into(self._memory, self._at(row), True, until or 0.0, *words)

    def drop(self, claim: Claim) -> None:
        """Remove a claim from the table."""
        row = self._used.pop((claim.queue, claim.id), None)
        if row is not None:
            self._memory[self._at(row)] = b"\0"
            self._free.append(row)

    def end(self, status: int) -> None:
        """Store that the work of the process is over, and its exit status."""
        _END.pack_into(self._memory, _HEAD.size, True, status)

    # The supervisor's side.

    @property
    def ended(self) -> int | None:
        """The exit status of a process whose work is over; None if the process works, or stored no status."""
        over, status = _END.unpack_from(self._memory, _HEAD.size)
        return status if over else None

    @property
    def beaten(self) -> tuple[str, float, float]:
        """The worker's name, the monotonic time at which the heartbeat's thread last ran, and the seconds between
        heartbeats.

        The name is empty before the first heartbeat.
        """
        at, interval, name = _HEAD.unpack_from(self._memory, 0)
        return _text(name), at, interval

    def held(self) -> list[HeldLease]:
        """Return the claims in the table."""
        found = []
        for row in range(self._rows):
            at = self._at(row)
            if self._memory[at] != b"\0":
                _, until, queue, job, fence = _ROW.unpack_from(self._memory, at)
                found.append(HeldLease(_text(queue), _text(job), _text(fence), until or None))
        return found

    def _at(self, row: int) -> int:
        return _ROWS_AT + row * _ROW.size


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("ascii", "replace")
