"""A simple token bucket in whole numbers. A rate with costs must let jobs begin at the same millisecond.

It shares no code and no formula with the scripts. They store an arrival time, and the bucket stores a level.
"""

from __future__ import annotations


class Bucket:
    """A bucket of up to ``burst`` units. It gets ``most`` units back in each window of ``window_ms``, evenly.

    The level is a whole number: it counts parts of a unit. A unit has ``window_ms`` parts, so each ms brings ``most``
    parts.
    """

    def __init__(self, most: int, window_ms: int, burst: int) -> None:
        self.most, self.window_ms, self.burst = most, window_ms, burst
        self.level = burst * window_ms
        self.at_ms = 0

    def _flow(self, at_ms: int) -> None:
        self.level = min(self.burst * self.window_ms, self.level + (at_ms - self.at_ms) * self.most)
        self.at_ms = at_ms

    def opens_ms(self, cost: int, at_ms: int) -> int:
        """Return the first time (ms), not before ``at_ms``, at which a job of this cost may begin."""
        self._flow(max(at_ms, self.at_ms))
        missing = min(cost, self.burst) * self.window_ms - self.level
        return self.at_ms + max(0, -(-missing // self.most))

    def take(self, cost: int, at_ms: int) -> None:
        """Take the cost of a job that begins. The level may fall below zero: the bucket then has a debt."""
        self._flow(at_ms)
        self.level -= cost * self.window_ms

    def correct(self, more: int, at_ms: int) -> None:
        """Take ``more`` units. A negative number gives units back, up to a full bucket."""
        self._flow(at_ms)
        self.level = min(self.burst * self.window_ms, self.level - more * self.window_ms)

    def empty(self, until_ms: int, at_ms: int) -> None:
        """Let at most one unit have been in the bucket at ``until_ms``, the end of a pause, which is not after
        ``at_ms``."""
        self._flow(at_ms)
        self.level = min(self.level, self.window_ms + (at_ms - until_ms) * self.most)
