"""Exports the last spans of a process when it ends, without letting an exporter that hangs keep the process."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import TracerProvider

FLUSH_S: Final = 2.0
"""Seconds for which a process that ends waits for the export of its last spans."""


class LastSpans:
    """Exports spans in a thread of its own, since a provider may wait for its exporter without a limit. The thread
    starts long before the process ends, since Python 3.12 and later start no thread while a process ends."""

    def __init__(self) -> None:
        self._providers: list[TracerProvider | None] = []
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Start the thread, in this process and in those that it forks."""
        os.register_at_fork(after_in_child=self._start)
        self._start()

    def add(self, provider: TracerProvider | None) -> None:
        """Add a provider whose spans are exported; None is the global provider."""
        if provider not in self._providers:
            self._providers.append(provider)

    def export(self) -> None:
        """Let the thread export the spans. Wait for the end of the export, but at most FLUSH_S seconds."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(FLUSH_S)

    def _start(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rq-core-last-spans", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._end.wait()
        for provider in self._providers:
            flush = getattr(provider or trace.get_tracer_provider(), "force_flush", None)
            if flush is not None:
                # An exporter may raise an exception; the spans of the other providers are exported nevertheless.
                with contextlib.suppress(Exception):
                    flush(int(FLUSH_S * 1000))
