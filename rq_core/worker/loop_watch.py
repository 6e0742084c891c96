"""Measures once a second how late the event loop is: what blocks it holds up every handler, and the next claim."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from rq_core.worker.flow import FlowTable
from rq_core.worker.lifetime import resident_bytes

EVERY_S: Final = 1.0
REMEMBERED: Final = 15
"""How many measurements the worst is shown of: as many as there are between two scrapes, as a rule."""


class LoopWatch:
    """Of one worker's loop. Use it on the loop."""

    def __init__(self, flow: FlowTable, clock: Callable[[], float] = time.monotonic) -> None:
        self._flow = flow
        self._clock = clock
        self._lags: deque[float] = deque(maxlen=REMEMBERED)
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin; the worker is expected to claim from now on."""
        self._flow.answered()
        self._due = self._clock()
        self.measure()

    def measure(self) -> None:
        """Note how late this is, and when it is next."""
        now = self._clock()
        self._lags.append(max(0.0, now - self._due))
        self._due = now + EVERY_S
        self._flow.measured(self._due, max(self._lags), resident_bytes())
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self.measure)

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._flow.at_rest()
