"""Names that are made here: job ids, and the ids of clients and workers.

A job id is a UUID version 7 (RFC 9562) as 32 hex digits: it begins with the time, so that ids sort by when they
were made and sit together in a database's index.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

_RANDOM_BITS: Final = 62
_RANDOM_MASK: Final = (1 << _RANDOM_BITS) - 1


class JobIds:
    """Makes job ids, one a call. Ids of one maker strictly increase, also within a millisecond.

    The 74 bits that are not time are a counter of 12 bits, from 0 in each millisecond (as RFC 9562 section 6.2
    method 1 allows), and 62 random ones. ``clock`` gives seconds, ``random`` 8 bytes.
    """

    __slots__ = ("_clock", "_counter", "_last", "_pool", "_random")

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._clock = clock
        self._random = random
        self._last = 0
        self._counter = 0
        self._pool: list[str] = []

    def __call__(self) -> str:
        """The next id."""
        now = int(self._clock() * 1000)
        if now > self._last:
            self._last, self._counter = now, 0
        else:
            self._counter += 1
            if self._counter > 0xFFF:
                self._last, self._counter = self._last + 1, 0
        pool = self._pool
        if not pool:
            raw = self._random(8 * 256).hex()
            # The variant is the two top bits of this half: 8, 9, a or b.
            pool = self._pool = [
                "89ab"[int(raw[at], 16) & 3] + raw[at + 1 : at + 16]
                for at in range(0, len(raw), 16)
            ]
        return f"{self._last:012x}7{self._counter:03x}{pool.pop()}"


def boot_id(role: str) -> str:
    """A name for a client or worker that no other boot ever has, like ``w-4211-9f3a61c2d0be``."""
    return f"{role}-{os.getpid()}-{os.urandom(6).hex()}"
