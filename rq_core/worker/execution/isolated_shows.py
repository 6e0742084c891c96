"""Sends the progress of an isolated handler, and the chunks of its stream, through the pipe to its worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, Final

from rq_core.app.handlers.context import JobContext
from rq_core.app.handlers.showing import Showing

SHOWN: Final = "shown"
"""The field of a message that has the handler's progress and the numbered chunks of its stream."""
PAUSE_S: Final = 0.1
"""Seconds between two messages with progress or chunks."""


class PipeShows:
    """Sends the progress of this process' handlers, and the chunks of their streams, to the worker. Only one handler
    runs at a time.
    """

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._sending = threading.Lock()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._showing: Showing | None = None

    def begin(self, _context: JobContext) -> Showing:
        """Return the object in which a handler stores its progress and the chunks of its stream."""
        self._showing = Showing(self._told)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="rq-core-shows", daemon=True)
            self._thread.start()
        return self._showing

    def _told(self, _showing: Showing) -> None:
        self._news.set()

    def _work(self) -> None:
        pause = threading.Event()
        while True:
            self._news.wait()
            self._news.clear()
            self._send_new(self._showing)
            pause.wait(PAUSE_S)

    def _send_new(self, showing: Showing | None) -> None:
        if showing is None:
            return
        with self._sending:
            said, chunks = showing.take_raw()
            if said is not None or chunks:
                message: dict[str, Any] = {SHOWN: [said, chunks]}
                self._send(json.dumps(message).encode())

    def send_last(self) -> None:
        """Send the progress and the chunks that are left. Call this before you report the handler's end."""
        showing, self._showing = self._showing, None
        self._send_new(showing)
