"""Time limits of running handlers. One timer serves all handlers with the same limit.

Equal limits expire in the order in which they began. So one timer is enough: it is set for the first of these handlers.
To begin or end a limit costs no more than an entry in a dict.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

EMPTY_MAX: Final = 64
"""Number of timers up to which a timer without handlers (an empty timer) is kept until it fires. If there are more
timers (for instance because each job has its own limit), an empty timer is removed at once."""


class _Timer(Generic[T]):
    """One timer for all things (such as handlers) with the same limit. ``ends``: thing → monotonic time at which its
    limit expires.
    """

    __slots__ = ("ends", "timer")

    def __init__(self) -> None:
        self.ends: dict[T, float] = {}
        self.timer: asyncio.TimerHandle | None = None


class TimeLimits(Generic[T]):
    """Calls ``on_over`` once, on the event loop, for each thing (such as a handler) that runs longer than its limit."""

    def __init__(self, on_over: Callable[[T], None]) -> None:
        self._on_over = on_over
        self._timers: dict[float, _Timer[T]] = {}

    def begin(self, thing: T, seconds: float) -> float:
        """Start a time limit of ``seconds`` for a thing, such as a handler. Return the monotonic time at which the
        limit expires.
        """
        timer = self._timers.get(seconds)
        if timer is None:
            timer = self._timers[seconds] = _Timer()
        # uvloop's own clock stops while a handler blocks the loop.
        over = time.monotonic() + seconds
        timer.ends[thing] = over
        if timer.timer is None:
            timer.timer = asyncio.get_running_loop().call_later(seconds, self._look, seconds)
        return over

    def end(self, thing: T, seconds: float) -> None:
        """Cancel a thing's limit of ``seconds``, because the thing has ended or gets another limit."""
        timer = self._timers.get(seconds)
        if timer is None:
            return
        timer.ends.pop(thing, None)
        if not timer.ends and len(self._timers) > EMPTY_MAX:
            self._remove(seconds, timer)

    def close(self) -> None:
        """Cancel all limits."""
        for seconds, timer in tuple(self._timers.items()):
            self._remove(seconds, timer)

    def _remove(self, seconds: float, timer: _Timer[T]) -> None:
        del self._timers[seconds]
        if timer.timer is not None:
            timer.timer.cancel()

    def _look(self, seconds: float) -> None:
        timer = self._timers[seconds]
        timer.timer = None
        # The clock may lag behind the timer by its own resolution.
        now = time.monotonic() + 0.001
        over = []
        for thing, at in timer.ends.items():
            if at > now:
                timer.timer = asyncio.get_running_loop().call_later(at - now, self._look, seconds)
                break
            over.append(thing)
        for thing in over:
            del timer.ends[thing]
        if not timer.ends:
            del self._timers[seconds]
        for thing in over:
            try:
                self._on_over(thing)
            except Exception:
                # The remaining things must be reported, too.
                log.exception("ending a handler at its time limit failed")


def start_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run a coroutine in a new asyncio task, with a copy of the context variables."""
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12) and loop.get_task_factory() is None:
        return asyncio.Task(coroutine, loop=loop, eager_start=True)
    return loop.create_task(coroutine)


def has_begun(handler: asyncio.Task[None]) -> bool:
    """Return whether the code of an asyncio task's coroutine has begun to run."""
    coroutine = handler.get_coro()
    return (
        not inspect.iscoroutine(coroutine)
        or inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED
    )
