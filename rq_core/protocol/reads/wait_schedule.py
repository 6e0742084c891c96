"""Decides when to poll the jobs for which clients wait.

This module does no I/O and starts no thread. :mod:`rq_core.connections.wait_thread` makes the polls.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from rq_core.errors import RqCoreError
from rq_core.protocol.reads.result_reads import Found

UNHEARD_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0)
"""Pauses in seconds between polls of a job, if no message will report the end of the job. Each pause is used once; then
the last pause is repeated."""
HEARD_S: Final = (0.25, 0.5, 1.0, 2.0, 5.0)
"""Pauses in seconds between polls of a job, if a message will report the end of the job. The polls are needed in case
the message is lost."""
TOGETHER_S: Final = 0.02
"""Polls that are due within this number of seconds are made together."""
TOGETHER_MAX: Final = 2_500
"""Maximum number of waits in one round of polls. The waits of a round get their results when the round is over. Without
this limit, the first of very many clients would get its result only after the last poll."""
GRAINS: Final = 10
"""Number of equal parts into which a pause between polls is divided. If a message will report the end of a job, the
job's polls are due at multiples of one part. Thus many waits share a poll."""


class Nothing(Enum):
    """The result of a wait whose time is over before the job has ended."""

    ALIVE = "the job has not ended"


Told = Found | Nothing | RqCoreError
"""The result of a wait for a job. It is an error if the last poll of the job failed."""


class JobWait:
    """One client's wait for one job. The function ``tell`` is called once, with the wait's result."""

    __slots__ = ("deadline", "hearing", "id", "looks", "over", "place", "queue", "tell", "trouble")

    def __init__(
        self, queue: str, job_id: str, deadline: float, tell: Callable[[Told], None]
    ) -> None:
        """Create a wait that times out at ``deadline``. This is a time in seconds, by the same clock as ``now`` in the
        methods of Waits."""
        self.queue = queue
        self.id = job_id
        self.deadline = deadline
        self.tell = tell
        self.looks = 0
        """Number of polls of the job that did not end the wait."""
        self.over = False
        self.trouble: RqCoreError | None = None
        """The error of the last poll; None if that poll did not fail."""
        self.place = 0
        """The number of the wait's entry in the queue of polls; 0: it has no entry."""
        self.hearing: object | None = None
        """The subscription to messages about ended jobs that existed when the last poll found the job alive. None:
        there was no subscription, or a message about the job has arrived after that poll."""

    def end(self, told: Told) -> None:
        """Call ``tell`` with the wait's result, unless the wait is already over."""
        if not self.over:
            self.over = True
            self.tell(told)


class Waits:
    """All waits whose jobs one thread polls, and the times of the next polls."""

    def __init__(self) -> None:
        self._line: list[tuple[float, int, JobWait]] = []
        """The queue of polls: a heap of (time of the poll, number of the entry, wait). An entry is ignored if the wait
        has got a newer entry."""
        self._number = itertools.count(1)
        self._by_job: defaultdict[str, dict[str, list[JobWait]]] = defaultdict(dict)

    def add(self, wait: JobWait, now: float) -> None:
        """Add a wait. The first poll of its job is due at once."""
        self._by_job[wait.queue].setdefault(wait.id, []).append(wait)
        self._put(wait, now)

    def next_at(self) -> float | None:
        """Return the time of the next poll; None: no poll is planned."""
        while self._line and not self._counts(self._line[0]):
            self._drop()
        return self._line[0][0] if self._line else None

    def due(self, now: float) -> dict[str, list[JobWait]]:
        """Return the waits whose jobs must be polled now, by queue. After the poll, the caller must pass each wait to
        ``looked``."""
        found: dict[str, list[JobWait]] = {}
        if (first := self.next_at()) is None or first > now:
            return found
        count = 0
        while count < TOGETHER_MAX and self._line and self._line[0][0] <= now + TOGETHER_S:
            counts = self._counts(self._line[0])
            wait = self._drop()
            if counts:
                wait.place = 0
                found.setdefault(wait.queue, []).append(wait)
                count += 1
        return found

    def told(self, queue: str, ids: Iterable[str], now: float) -> None:
        """Make polls due at once for jobs in ``ids``, if clients wait for these jobs. A message has reported that the
        jobs have ended."""
        waiting = self._by_job.get(queue)
        for job_id in ids if waiting else ():
            for wait in waiting.get(job_id, ()):  # type: ignore[union-attr]  # then there are no ids
                wait.hearing = None
                self._put(wait, now)

    def missed(self, queue: str, now: float) -> None:
        """Make polls due at once for all jobs of a queue for which clients wait, because messages about their ends may
        be lost."""
        for waits in self._by_job.get(queue, {}).values():
            for wait in waits:
                self._put(wait, now)

    def looked(
        self,
        wait: JobWait,
        found: Found | None,
        now: float,
        began: float,
        hearing: object | None = None,
    ) -> None:
        """Record the result of a poll of one job. The poll began at ``began``. Then plan the next poll, or end the
        wait.

        ``found`` is the result for a job that is not alive. Without it, the job is alive or the poll failed; after a
        failure, ``wait.trouble`` has the error. ``hearing`` is the subscription that will report the job's end, if
        there is one.
        """
        if wait.place and found is None and not wait.over:
            # A message has come since: the next look is due.
            return
        wait.hearing = hearing
        if not wait.over and found is None and began < wait.deadline:
            wait.looks += 1
            pauses = HEARD_S if hearing else UNHEARD_S
            pause = pauses[min(wait.looks, len(pauses)) - 1]
            at = now + pause
            if hearing:
                grain = pause / GRAINS
                at = math.ceil(at / grain) * grain
            self._put(wait, min(at, wait.deadline))
            return
        self.forget(wait)
        wait.end(found or wait.trouble or Nothing.ALIVE)

    def all(self) -> list[JobWait]:
        """Return all waits that are not over."""
        return [
            w for jobs in self._by_job.values() for ws in jobs.values() for w in ws if not w.over
        ]

    def queues(self) -> set[str]:
        """Return the queues with jobs for which clients wait."""
        return {queue for queue, jobs in self._by_job.items() if jobs}

    def _put(self, wait: JobWait, at: float) -> None:
        wait.place = next(self._number)
        heapq.heappush(self._line, (at, wait.place, wait))

    @staticmethod
    def _counts(entry: tuple[float, int, JobWait]) -> bool:
        return entry[1] == entry[2].place and not entry[2].over

    def _drop(self) -> JobWait:
        _, place, wait = heapq.heappop(self._line)
        if wait.over and place == wait.place:
            self.forget(wait)
        return wait

    def forget(self, wait: JobWait) -> None:
        """Remove a wait, so that it causes no further polls."""
        jobs = self._by_job.get(wait.queue, {})
        waits = jobs.get(wait.id)
        if waits and wait in waits:
            waits.remove(wait)
            if not waits:
                del jobs[wait.id]
