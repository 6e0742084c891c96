"""A token bucket in whole numbers, one unit per line of thought: what a rate with costs must agree with to the
millisecond. It shares no code and no formula with the scripts, which keep an arrival time in place of a level."""

from __future__ import annotations


class Bucket:
    """Holds ``burst`` units, and gets ``most`` back per ``window_ms``, evenly.

    Levels are in parts of a unit: ``window_ms`` parts make one, so that each ms brings a whole number of parts."""

    def __init__(self, most: int, window_ms: int, burst: int) -> None:
        self.most, self.window_ms, self.burst = most, window_ms, burst
        self.level = burst * window_ms
        self.at_ms = 0

    def _flow(self, at_ms: int) -> None:
        self.level = min(self.burst * self.window_ms, self.level + (at_ms - self.at_ms) * self.most)
        self.at_ms = at_ms

    def opens_ms(self, cost: int, at_ms: int) -> int:
        """Return the first ms, from ``at_ms`` on, at which a job of this cost may begin."""
        self._flow(max(at_ms, self.at_ms))
        missing = min(cost, self.burst) * self.window_ms - self.level
        return self.at_ms + max(0, -(-missing // self.most))

    def take(self, cost: int, at_ms: int) -> None:
        """Let a job of this cost begin. The level may fall below zero: then the bucket is owed something."""
        self._flow(at_ms)
        self.level -= cost * self.window_ms

    def correct(self, more: int, at_ms: int) -> None:
        """Take so much more, or give it back if it is negative: at most so much that the bucket is full."""
        self._flow(at_ms)
        self.level = min(self.burst * self.window_ms, self.level - more * self.window_ms)
