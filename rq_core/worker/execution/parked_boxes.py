"""Keeps the boxes of the jobs that a worker has parked, so that the next claim of such a job need not read its box.

A box has the saved steps, the waits and the signals of one durable job. Only the holder of a claim writes entries into
a box. So a kept box is still what Redis has if the same worker makes the job's next claim, and if this claim has the
same box and belongs to the same epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from rq_core.app.handlers.context import JobContext
from rq_core.model.ids import epoch_of_fence
from rq_core.model.lib.newest_values import NewestValues
from rq_core.protocol.reads.box_reads import Box

BOXES_MAX: Final = 256
"""Maximum number of jobs whose boxes (saved steps, waits and signals) a worker keeps."""
BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum number of bytes of all kept boxes. Beyond this number, the worker forgets the boxes of the jobs that it
parked first."""
ENTRY_BYTES: Final = 500
"""Number of bytes that count for each entry of a kept box, in addition to the bytes of its value."""


class _Parked(NamedTuple):
    """The box of a parked job (its saved steps, waits and signals), and the claim that parked the job."""

    claim: int
    epoch: str
    box: Box


class ParkedBoxes:
    """Keeps the boxes of the jobs that a worker has parked. A box has a job's saved steps, waits and signals. ``clock``
    returns Unix seconds.
    """

    def __init__(self, bytes_max: int = BYTES_MAX, clock: Callable[[], float] = time.time) -> None:
        self._bytes_max, self._clock = bytes_max, clock
        self._newest: NewestValues[tuple[str, str], _Parked] = NewestValues(BOXES_MAX, bytes_max)

    def keep(self, context: JobContext, box: Box) -> None:
        """Keep the box (saved steps, waits and signals) of a job that the claim of ``context`` parks. A box is not kept
        if it has more than a quarter of the maximum number of bytes.
        """
        size = sum(ENTRY_BYTES + len(entry.value or "") for entry in box.entries)
        if size > self._bytes_max // 4:
            return
        # The run that saved an entry does not know the time at which Redis wrote the entry.
        now_ms = round(self._clock() * 1000)
        entries = tuple(e if e.at_ms else e._replace(at_ms=now_ms) for e in box.entries)
        parked = _Parked(context.claim, epoch_of_fence(context.fence), Box(box.life, entries))
        self._newest.put((context.queue, context.id), parked, size)

    def take(self, context: JobContext) -> Box | None:
        """Return the kept box of a claimed job, so that it need not be read from Redis. Return None if this worker has
        not kept the box, or if it may be outdated.
        """
        parked = self._newest.take((context.queue, context.id))
        if parked is None or context.life is None:
            return None
        claim, epoch, box = parked
        mine = claim + 1, epoch, box.life
        return box if mine == (context.claim, epoch_of_fence(context.fence), context.life) else None
