"""Threads for ``def`` handlers. The threads share one queue, and wake the event loop once for many ended calls.

concurrent.futures creates a future for each call and wakes the loop for each future. Here a burst of short handlers
wakes the loop once.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Threads(Generic[T]):
    """Runs ``work(thing)`` in a thread for each submitted thing (such as a claim), then calls ``on_end(thing, error)``
    on the event loop.

    Up to ``threads`` things run at once, and the caller must not submit more. So each thing starts at once. A thread is
    created when it is first needed. Context variables that ``work`` sets are gone after the call.
    """

    def __init__(
        self,
        threads: int,
        name: str,
        *,
        work: Callable[[T], None],
        on_end: Callable[[T, BaseException | None], None],
    ) -> None:
        self._most = threads
        self._name = name
        self._work = work
        self._on_end = on_end
        self._queue: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._ended: deque[tuple[T, BaseException | None]] = deque()
        self._told = False
        """True if the event loop was woken for calls that ended, and has not processed them yet."""
        self._open = 0
        """Number of things that were submitted and have not ended."""
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, thing: T) -> None:
        """Run ``work(thing)`` in a thread. Call this method on the loop.

        Raises RuntimeError if a new thread is needed and cannot start.
        """
        self._loop = asyncio.get_running_loop()
        if self._open >= len(self._threads) < self._most:
            # A handler that hangs must not keep the process alive.
            thread = threading.Thread(
                target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        self._open += 1
        self._queue.put(thing)

    def close(self) -> None:
        """Start nothing more. Running calls continue; things that no thread has begun are dropped."""
        try:
            while True:
                self._queue.get_nowait()
        except queue.Empty:
            pass
        for _ in self._threads:
            self._queue.put(None)

    def _run(self) -> None:
        while (thing := self._queue.get()) is not None:
            error: BaseException | None = None
            try:
                contextvars.copy_context().run(self._work, thing)
            except BaseException as raised:  # noqa: BLE001 - also SystemExit: the thread must report, and go on
                error = raised
            self._ended.append((thing, error))
            # In this order: the loop clears the flag before it collects, so a set flag means that it will still collect
            # this.
            if not self._told:
                self._told = True
                self._tell()
            thing = error = None  # Keep nothing of a job until the next one arrives.

    def _tell(self) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._collect)
        except RuntimeError:
            # The loop is closed: nothing waits for the report.
            self._told = False

    def _collect(self) -> None:
        self._told = False
        try:
            while self._ended:
                thing, error = self._ended.popleft()
                self._open -= 1
                self._on_end(thing, error)
        finally:
            if self._ended:
                # A callback raised an error: the remaining things must be reported anyway.
                self._tell()
