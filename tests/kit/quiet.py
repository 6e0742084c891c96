"""Exclusive time for tests that measure time: while such a test runs, the other test processes wait.

A test that is marked ``alone`` measures a duration. If other tests ran at the same time, it would also measure their
load, and its limits are promises that must not be relaxed.
"""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


class Room:
    """A lock on a file that either any number of tests share or one test holds alone."""

    def __init__(self, directory: Path) -> None:
        self._door = directory / "door"
        self._room = directory / "room"

    @contextlib.contextmanager
    def taken(self, *, alone: bool) -> Iterator[None]:
        """Hold the lock during the block. While a test waits for the lock alone, no other test can take it."""
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
