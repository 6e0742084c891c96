"""When to look at jobs that are waited for. No I/O and no threads: :mod:`rq_core.connections.waiter` drives it."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from enum import Enum
from typing import Final

from rq_core.errors import RqCoreError
from rq_core.protocol.endings import Found

PAUSES_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0)
"""Seconds between two looks at a job, the first ones and then always the last."""
TOGETHER_S: Final = 0.02
"""Looks that are due within so many seconds are made together."""
TOGETHER_MAX: Final = 2_500
"""Most jobs that are looked at before their waits are told: of many, the first need not wait for the last."""


class Nothing(Enum):
    """What a look has found if the time is up first."""

    ALIVE = "the job has not ended"


Told = Found | Nothing | RqCoreError
"""What a wait ends with. An error: the job could not be looked at, the last time."""


class Wait:
    """One wait for one job. ``tell`` is called once, with what it ends with."""

    __slots__ = ("deadline", "id", "looks", "over", "queue", "tell", "trouble")

    def __init__(
        self, queue: str, job_id: str, deadline: float, tell: Callable[[Told], None]
    ) -> None:
        """``deadline`` is on the clock of the waits."""
        self.queue = queue
        self.id = job_id
        self.deadline = deadline
        self.tell = tell
        self.looks = 0
        """How often the job was looked at."""
        self.over = False
        self.trouble: RqCoreError | None = None
        """Why the last look failed, if it did."""

    def end(self, told: Told) -> None:
        """Tell, unless that was done."""
        if not self.over:
            self.over = True
            self.tell(told)


class Waits:
    """The waits of one process."""

    def __init__(self) -> None:
        self._line: list[tuple[float, int, Wait]] = []
        """(When to look, a number, the wait), as a heap."""
        self._number = itertools.count()
        self.open = 0
        """How many are not over."""

    def add(self, wait: Wait, now: float) -> None:
        """Begin to wait: the first look is due now."""
        self.open += 1
        self._put(wait, now)

    def next_at(self) -> float | None:
        """When the next look is due; None: there is nothing to look at."""
        while self._line and self._line[0][2].over:
            heapq.heappop(self._line)
        return self._line[0][0] if self._line else None

    def due(self, now: float) -> dict[str, list[Wait]]:
        """The waits whose jobs are to be looked at now, by queue. Each has to be given to ``looked``."""
        found: dict[str, list[Wait]] = {}
        if (first := self.next_at()) is None or first > now:
            return found
        count = 0
        while count < TOGETHER_MAX and self._line and self._line[0][0] <= now + TOGETHER_S:
            wait = heapq.heappop(self._line)[2]
            if not wait.over:
                found.setdefault(wait.queue, []).append(wait)
                count += 1
        return found

    def looked(self, wait: Wait, found: Found | None, now: float, began: float) -> None:
        """A look that began at ``began`` has found this of the wait's job; None: it is alive, or ``trouble`` says why
        that is not known."""
        if wait.over:
            return
        if found is not None:
            wait.end(found)
        elif began >= wait.deadline:
            wait.end(wait.trouble or Nothing.ALIVE)
        else:
            wait.looks += 1
            pause = PAUSES_S[min(wait.looks, len(PAUSES_S)) - 1]
            self._put(wait, min(now + pause, wait.deadline))

    def _put(self, wait: Wait, at: float) -> None:
        heapq.heappush(self._line, (at, next(self._number), wait))

    def all(self) -> list[Wait]:
        """All waits that are not over."""
        return [wait for _, _, wait in self._line if not wait.over]
