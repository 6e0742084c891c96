"""Generates unique names: job ids, and the names of clients and workers.

A job id is a UUID version 7 (RFC 9562) as 32 hex digits. It begins with the time. So ids sort by their time of
creation, and new ids are close together in a database's index.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

_RANDOM_BITS: Final = 62


_COUNTERS: Final = tuple(map("".join, itertools.product("0123456789abcdef", repeat=3)))
"""The hex texts of all values of the counter, made once. Formatting the counter for each id would take longer than
making the rest of the id."""


def epoch_of_fence(fence: str) -> str:
    """Return the epoch of a claim, from the claim's fence. An epoch is an unbroken stretch of a queue's history in
    Redis.
    """
    return fence.partition("-")[0]


class JobIds:
    """A generator of job ids. Each call returns one id, which is greater than all earlier ids of this generator.

    After the time in ms, an id has a counter of 12 bits and 62 random bits. The counter begins at 0 in each millisecond
    (RFC 9562, section 6.2, method 1). ``clock`` returns Unix seconds; ``random`` returns a given number of random
    bytes. Threads may share a generator. A forked process draws its own random bits.
    """

    __slots__ = (
        "__weakref__", "_beginning", "_clock", "_counter", "_last", "_lock", "_pool", "_random",
    )  # fmt: skip

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._clock = clock
        self._random = random
        self._begin_millisecond(0)
        self._begin_process()
        _makers.add(self)

    def _begin_process(self) -> None:
        self._lock = threading.Lock()
        self._pool: list[str] = []

    def __call__(self) -> str:
        """Return the next id."""
        now = int(self._clock() * 1000)
        with self._lock:
            if now > self._last:
                self._begin_millisecond(now)
            else:
                self._counter += 1
                if self._counter > 0xFFF:
                    self._begin_millisecond(self._last + 1)
            if not self._pool:
                self._pool = self._draw()
            return self._beginning + _COUNTERS[self._counter] + self._pool.pop()

    def _begin_millisecond(self, now: int) -> None:
        self._last, self._counter, self._beginning = now, 0, f"{now:012x}7"

    def _draw(self) -> list[str]:
        raw = self._random(8 * 256).hex()
        # The variant is the two top bits of this half: 8, 9, a or b.
        return [
            "89ab"[int(raw[at], 16) & 3] + raw[at + 1 : at + 16] for at in range(0, len(raw), 16)
        ]


_makers: Final[weakref.WeakSet[JobIds]] = weakref.WeakSet()


def _begin_process() -> None:
    # With its parent's random bits a child would make its parent's ids, and another thread of the
    # parent may have held the lock.
    for maker in _makers:
        maker._begin_process()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_begin_process)


def boot_id(role: str) -> str:
    """Return a name that is unique for this start of a process, like ``w-4211-9f3a61c2d0be``."""
    return f"{role}-{os.getpid()}-{os.urandom(6).hex()}"
