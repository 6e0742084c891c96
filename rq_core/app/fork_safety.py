"""A fork waits until another thread has prepared an app's first use.

The client, and with it redis-py, is imported when it is first needed. A child that was forked in the middle of that
would wait for ever, for locks that a thread of its parent had: those of the modules that were being imported among
them, which Python does not renew. So such work is done under locks of ours, which every fork takes first.

A fork takes the locks of what was imported last first. Who prepares something may need the locks of the standard
library's modules that have such a lock, so ours must be taken before theirs: it is registered after they were imported,
and another one is held meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# A lock that a fork takes first, so that no child is made while another thread works under it.


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


WAIT_S: Final = 60.0
"""Seconds after which a fork goes on all the same."""


class _EarlyGate(ForkGate):
    """The one that is there from the beginning."""

    def before(self) -> None:
        super().before()
        if _late is not None:
            # It was made while this fork waited, which therefore does not ask it by itself.
            _late.before()


_early: Final = _EarlyGate(WAIT_S)
_late: ForkGate | None = None


@contextmanager
def preparing() -> Iterator[None]:
    """Import or make in here what a forked child would need, too. The thread that forks may be in here itself."""
    global _late  # noqa: PLW0603 - forks are the process' own, too
    with _early.closed():
        if _late is None:
            import concurrent.futures.thread  # noqa: F401
            import logging  # noqa: F401
            import random  # noqa: F401 - for their locks, all three

            _late = ForkGate(WAIT_S)
    with _late.closed():
        yield
