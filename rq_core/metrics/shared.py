"""One look at all queues for all who watch: fifty viewers cost Redis what one does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from rq_core.connections.client import Client
from rq_core.errors import RqCoreError
from rq_core.protocol.overview import Overview

SHARED_S: Final = 1.0
"""Seconds for which a look is shown to everybody."""


class SharedOverview:
    """Shows the last look at all queues, and looks again when it is older than ``shared_s`` seconds.

    Threads may share it: while one looks, the others wait for what it finds. That nothing could be read is shared as
    well, so viewers do not queue up before a server that is away.
    """

    def __init__(
        self,
        client: Client,
        *,
        shared_s: float = SHARED_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._shared_s = shared_s
        self._clock = clock
        self._lock = threading.Lock()
        self._found: Overview | RqCoreError | None = None
        self._until = float("-inf")

    def get(self) -> Overview:
        """Return how all queues stand. Raises ServerUnavailable or ServerUnsuitable."""
        with self._lock:
            if self._found is None or self._clock() >= self._until:
                try:
                    self._found = self._client.run(self._client.calls.overview.all())
                except RqCoreError as error:
                    self._found = error
                self._until = self._clock() + self._shared_s
            found = self._found
        if isinstance(found, RqCoreError):
            raise found
        return found
