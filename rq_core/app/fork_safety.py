"""Makes a fork wait while another thread prepares an app's first use.

The first use of an app imports the client and redis-py. If another thread forks during this import, the child inherits
import locks that no thread of the child ever releases. So the import runs under locks of this module. Every fork takes
these locks first, and so waits for the import.

A fork also takes the locks of some modules of the standard library, such as ``logging``. The imports under this
module's locks may need those locks. So a fork must take this module's locks first. A fork takes locks in the reverse
order of their registration. So this module registers the lock ``_late`` after it has imported those modules. While it
imports them, it holds the lock ``_early``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# A fork takes the gate's lock first, so that no child is made while another thread works under the lock.


class ForkGate:
    """A lock that makes forks wait while another thread holds it. The thread that holds it may fork."""

    def __init__(self, wait_s: float) -> None:
        """``wait_s`` is how long a fork waits for the lock, in seconds. After this time, the fork proceeds without the
        lock.

        A child that was forked without the lock may hang. The parent never hangs.
        """
        self._wait_s = wait_s
        self._lock = threading.RLock()
        self._forking: int | None = None
        """Identifier of the thread that holds the lock for its fork; None if no fork holds the lock."""
        os.register_at_fork(
            before=self.before, after_in_parent=self._after, after_in_child=self._in_child
        )

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Hold the lock during a block. Forks by other threads, and other such blocks, wait until the block ends."""
        with self._lock:
            yield

    def before(self) -> None:
        """Take the lock before a fork in this thread. A second call for the same fork does nothing."""
        # If another thread forks at the same time, this thread waits here until that fork is made.
        if self._forking != threading.get_ident() and self._lock.acquire(timeout=self._wait_s):
            self._forking = threading.get_ident()

    def _after(self) -> None:
        if self._forking == threading.get_ident():
            self._forking = None
            self._lock.release()

    def _in_child(self) -> None:
        # Other threads do not exist in the child, so none would release the old lock. A block of this thread that
        # holds the old lock releases the old object.
        self._lock = threading.RLock()
        self._forking = None


WAIT_S: Final = 60.0
"""Seconds after which a fork proceeds without the lock."""


class _EarlyGate(ForkGate):
    """The gate that is registered when this module is imported. A fork that takes this gate's lock also takes the lock
    of ``_late``."""

    def before(self) -> None:
        super().before()
        if _late is not None:
            # If the late gate was registered while this fork waited, the fork does not call it by itself.
            _late.before()


_early: Final = _EarlyGate(WAIT_S)
_late: ForkGate | None = None


@contextmanager
def preparing() -> Iterator[None]:
    """Make forks in other threads wait while a block imports modules or makes objects.

    A child that is forked later finds these modules and objects complete. The thread in the block may fork.
    """
    global _late  # noqa: PLW0603 - forks are the process' own, too
    with _early.closed():
        if _late is None:
            import concurrent.futures.thread  # noqa: F401
            import logging  # noqa: F401
            import random  # noqa: F401 - for their locks, all three

            _late = ForkGate(WAIT_S)
    with _late.closed():
        yield
