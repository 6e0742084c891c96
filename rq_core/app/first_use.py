"""A fork waits until what another thread prepares for an app's first use is there.

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

WAIT_S: Final = 60.0
"""Seconds after which a fork goes on all the same: then its child may hang, but never the parent."""


class _Gate:
    """A lock that a fork takes, and that its child finds free."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held_by_fork = False
        os.register_at_fork(
            before=self._before, after_in_parent=self._after, after_in_child=self._in_child
        )

    @contextmanager
    def closed(self) -> Iterator[None]:
        with self._lock:
            yield

    def _before(self) -> None:
        if not self._held_by_fork:
            self._held_by_fork = self._lock.acquire(timeout=WAIT_S)

    def _after(self) -> None:
        if self._held_by_fork:
            self._held_by_fork = False
            self._lock.release()

    def _in_child(self) -> None:
        if not self._held_by_fork:
            self._lock = threading.RLock()
        self._after()


class _EarlyGate(_Gate):
    """The one that is there from the beginning."""

    def _before(self) -> None:
        super()._before()
        if _late is not None:
            # It was made while this fork waited, which therefore does not ask it by itself.
            _late._before()  # noqa: SLF001 - of this module


_early: Final = _EarlyGate()
_late: _Gate | None = None


@contextmanager
def preparing() -> Iterator[None]:
    """Import or make in here what a forked child would need, too. The thread that forks may be in here itself."""
    global _late  # noqa: PLW0603 - forks are the process' own, too
    with _early.closed():
        if _late is None:
            import concurrent.futures.thread  # noqa: F401
            import logging  # noqa: F401
            import random  # noqa: F401 - for their locks, all three

            _late = _Gate()
    with _late.closed():
        yield
