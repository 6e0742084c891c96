"""Reads from the audit log how jobs ended. A thread reads, so a database that does not answer delays no caller's
timeout."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from rq_core.app.fork_safety import ForkGate, preparing
from rq_core.errors import RqCoreError, UsageError
from rq_core.model import plugins
from rq_core.model.plugins import EndingsReader

_SQLITE_READS: Final = ForkGate(1.0)
"""A lock that makes forks wait while a thread reads SQLite. If a thread held a lock of SQLite during a fork, the child
would wait for the lock of SQLite for ever."""
SILENT: Final = "the audit database has not answered: does it run, and can it be reached?"


class LogReading:
    """One read of the audit log or of an inbox. The read is under way, or is done."""

    def __init__(self) -> None:
        self.is_done = False
        self._found: Any = None
        self._error: Exception | None = None

    def end(self, found: Any = None, error: Exception | None = None) -> None:
        """Mark the read as done. ``found`` is the result of the read. ``error`` is the error of a failed read."""
        self._found, self._error = found, error
        self.is_done = True

    def answer(self) -> Any:
        """Return the result of the read. Return an RqCoreError if the read is not done, or has failed with an
        RqCoreError that is no UsageError.

        Raises any other error of the read.
        """
        if not self.is_done:
            return RqCoreError(SILENT)
        if self._error is None:
            return self._found
        if isinstance(self._error, RqCoreError) and not isinstance(self._error, UsageError):
            return self._error
        raise self._error


class BackgroundLogReader:
    """Reads the audit log for one wait. Each read runs in a thread. The wait calls ``close`` at its end."""

    def __init__(self, audit_url: str) -> None:
        self._audit_url = audit_url
        # Forks do not wait for reads of a server: it may not answer.
        self._is_server = audit_url.startswith("postgres")
        self._lock = threading.Lock()
        self._reader: EndingsReader | None = None
        """The reader of the database. While a read is under way, only the thread of this read may use the reader."""
        self._current: LogReading | None = None
        """The read that is under way, if any."""
        self._is_closed = False

    def begin(
        self, queue: str, jobs: Mapping[str, tuple[int, int]], notify: Callable[[], None]
    ) -> LogReading:
        """Begin, in another thread, to read how jobs of a queue ended. The thread calls ``notify`` when the read is
        done.

        If an earlier read is still under way, no new read begins. The returned LogReading is then already done, with
        the error SILENT. Raises RuntimeError if the process can start no thread.
        """
        reading = LogReading()
        with self._lock:
            if self._current is not None:
                reading.end(error=RqCoreError(SILENT))
                return reading
            self._current = reading
        try:
            # The thread may never end: neither this process nor an event loop must wait for it.
            threading.Thread(
                target=self._read,
                args=(reading, queue, jobs, notify),
                name="rq-core-log",
                daemon=True,
            ).start()
        except RuntimeError:
            self._current = None
            raise
        return reading

    def close(self) -> None:
        """Close all connections. If a read runs, its thread closes the connections at the end of the read."""
        with self._lock:
            self._is_closed = True
            if self._current is not None:
                return
        self._close()

    def _read(
        self,
        reading: LogReading,
        queue: str,
        jobs: Mapping[str, tuple[int, int]],
        notify: Callable[[], None],
    ) -> None:
        found: Any = None
        failed: Exception | None = None
        try:
            with preparing():
                make = plugins.endings_opener()
            with self._no_fork():
                if self._reader is None:
                    self._reader = make(self._audit_url)
                found = self._reader.read(queue, jobs)
        except Exception as error:  # noqa: BLE001 - it is raised where the read was begun
            failed = error
        with self._lock:
            self._current = None
            is_closed = self._is_closed
        if is_closed:
            self._close()
        reading.end(found, failed)
        notify()

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            with self._no_fork():
                reader.close()

    def _no_fork(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._is_server else _SQLITE_READS.closed()
