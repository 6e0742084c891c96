"""Exclusive time for tests that measure a duration. While such a test runs, all other test processes wait.

These tests have the mark ``alone``. Other tests would make their durations longer, and the limits on durations are
promises.
"""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


class Room:
    """A file lock that many tests share, or that one test holds alone."""

    def __init__(self, directory: Path) -> None:
        self._door = directory / "door"
        self._room = directory / "room"

    @contextlib.contextmanager
    def taken(self, *, alone: bool) -> Iterator[None]:
        """Hold the lock during the block. While a test waits to be alone, no further test gets the lock."""
        with self._door.open("ab") as door, self._room.open("ab") as room:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            if not alone:
                fcntl.flock(door, fcntl.LOCK_UN)
            try:
                yield
            finally:
                # A child that was forked meanwhile has these files, too: closing ours would not do.
                fcntl.flock(room, fcntl.LOCK_UN)
                fcntl.flock(door, fcntl.LOCK_UN)
