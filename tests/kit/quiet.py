"""Quiet for tests that hold the machine to a time: while one runs, the other processes of the run wait.

A test that is marked ``alone`` measures how long something takes. Beside two others it would measure those. Its bounds
are promises, so it is not they that give way.
"""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


class Room:
    """A room that any number of tests share, or one has for itself; in each process, a file's locks."""

    def __init__(self, directory: Path) -> None:
        self._door = directory / "door"
        self._room = directory / "room"

    @contextlib.contextmanager
    def taken(self, *, alone: bool) -> Iterator[None]:
        """Be in the room. Who waits to be alone lets nobody else in meanwhile."""
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
