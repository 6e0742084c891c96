"""Counts the commands that a server carries out, also within scripts. This cost does not depend on the machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis

SCRIPT_CALLS = frozenset({"fcall", "evalsha", "eval", "info", "config|resetstat"})
"""Commands that call a script or read the counts. They do not count as calls that a script makes."""


class Tally:
    """Counts the calls of ``redis.call`` in one or more blocks, from INFO commandstats."""

    def __init__(self, control: redis.Redis) -> None:
        self._control = control
        self.calls = 0
        self.scripts = 0
        self.script_us = 0
        """The time that the server has spent in scripts, in microseconds."""

    def _read(self) -> dict[str, dict[str, Any]]:
        stats: dict[str, dict[str, Any]] = self._control.info("commandstats")
        return {name.removeprefix("cmdstat_"): facts for name, facts in stats.items()}

    @contextmanager
    def counting(self) -> Iterator["Tally"]:
        """Count the calls that happen during the block, and add them to ``calls``."""
        before = self._read()
        try:
            yield self
        finally:
            after = self._read()
            for name, facts in after.items():
                then = before.get(name, {"calls": 0, "usec": 0})
                if name not in SCRIPT_CALLS:
                    self.calls += facts["calls"] - then["calls"]
                elif name in {"fcall", "evalsha"}:
                    self.scripts += facts["calls"] - then["calls"]
                    self.script_us += facts["usec"] - then["usec"]


def calls_of(control: redis.Redis, work: Callable[[], object]) -> int:
    """Return how many times scripts call ``redis.call`` during ``work``."""
    tally = Tally(control)
    with tally.counting():
        work()
    return tally.calls
