"""A lock that a fork takes first, so that no child is made in the middle of what is done under it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ForkGate:
    """Forks wait while it is closed by another thread. The thread that forks may have closed it itself."""

    def __init__(self, wait_s: float) -> None:
        """``wait_s``: seconds after which a fork goes on all the same; then its child may hang, never the parent."""
        self._wait_s = wait_s
        self._lock = threading.RLock()
        self._forking: int | None = None
        """The thread that forks, if it has the lock."""
        os.register_at_fork(
            before=self.before, after_in_parent=self._after, after_in_child=self._in_child
        )

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Hold up forks in here, and the other threads that would be in here."""
        with self._lock:
            yield

    def before(self) -> None:
        """Take the lock for a fork that this thread is about to make. It may be asked twice."""
        # Another thread may fork at the same time: it waits here until that is done.
        if self._forking != threading.get_ident() and self._lock.acquire(timeout=self._wait_s):
            self._forking = threading.get_ident()

    def _after(self) -> None:
        if self._forking == threading.get_ident():
            self._forking = None
            self._lock.release()

    def _in_child(self) -> None:
        # Who has the old one, if not this thread, is not here. If it is this thread, it gives back the old one.
        self._lock = threading.RLock()
        self._forking = None
