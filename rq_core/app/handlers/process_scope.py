"""The values of dependencies with ``scope="process"``: each is made once in a process.

Their context managers are left when the process ends.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import logging
import threading
from contextlib import AsyncExitStack
from typing import Any, Final

from rq_core.app.handlers.depends import Provider, Step, name_of
from rq_core.app.handlers.handler_setup import Entered, now

log = logging.getLogger(__name__)

LEAVE_WAIT_S: Final = 5.0
"""Maximum seconds for leaving the context managers of all values. After that, the process ends without leaving the
rest."""


class _Kept:
    """The value of one dependency. Its context manager, if it has one, is left at the end of the process."""

    def __init__(self, step: Step) -> None:
        self.provider = step.provider
        self.name = name_of(step.provider)
        self.value: concurrent.futures.Future[Any] = concurrent.futures.Future()
        # So a job that is cancelled while it waits for the value cannot cancel it for other jobs.
        self.value.set_running_or_notify_cancel()
        self.stack = AsyncExitStack()
        # Entering and leaving the value share a context, which is not that of the job that needs it first.
        self.context = contextvars.Context()
        self.keeper: asyncio.Task[None] | None = None
        """The asyncio task that enters and leaves the value's context manager, if the value is made on an event loop:
        some context managers must be left by the task that entered them. None for a value that is made in a thread."""
        self.over = asyncio.Event()


class Resources:
    """Makes the value of each dependency with ``scope="process"`` when a job first needs the value, and keeps it until
    ``close``.

    Handlers on the event loop and handlers in threads share the values. If a provider raises an exception, the next job
    calls it again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Provider, _Kept] = {}
        self._made: list[_Kept] = []
        """The values in the order in which they were made: each value after the values that it needs."""

    async def value(self, step: Step, *, awaits: bool) -> Any:
        """Return the value of a dependency. ``step`` is the planned call of its provider. If ``awaits`` is false, the
        call blocks the caller's thread."""
        with self._lock:
            kept = self._kept.get(step.provider)
            mine = kept is None
            if kept is None:
                kept = self._kept[step.provider] = _Kept(step)
        if mine and awaits:
            loop = asyncio.get_running_loop()
            kept.keeper = loop.create_task(self._keep(kept, step), context=kept.context)
        elif mine:
            kept.context.run(self._make_here, kept, step)
        if awaits and not kept.value.done():
            there = asyncio.wrap_future(kept.value)
            there.add_done_callback(_retrieved)
            return await asyncio.shield(there)
        return kept.value.result()

    async def _keep(self, kept: _Kept, step: Step) -> None:
        try:
            async with kept.stack as stack:
                self._there(kept, await Entered(stack, self, awaits=True).make(step))
                await kept.over.wait()
        except BaseException as error:  # noqa: BLE001 - also SystemExit: it is the error of the jobs that wait for it
            self._failed(kept, error)

    def _make_here(self, kept: _Kept, step: Step) -> None:
        try:
            self._there(kept, now(Entered(kept.stack, self, awaits=False).make(step)))
        except BaseException as error:  # noqa: BLE001 - as above
            self._failed(kept, error)

    def _there(self, kept: _Kept, value: Any) -> None:
        with self._lock:
            self._made.append(kept)
        kept.value.set_result(value)

    def _failed(self, kept: _Kept, error: BaseException) -> None:
        if kept.value.done() and isinstance(error, asyncio.CancelledError):
            return  # ``close`` gave up leaving it, and logged that.
        if kept.value.done():
            log.error("leaving the dependency %s failed", kept.name, exc_info=error)
            return
        with self._lock:
            self._kept.pop(kept.provider, None)
        kept.value.set_exception(error)

    async def close(self) -> None:
        """Leave the context managers of all values, the newest first. Give up after LEAVE_WAIT_S seconds.

        Call this method when no handler runs any more.
        """
        with self._lock:
            made, self._made = self._made, []
            kept, self._kept = self._kept, {}
        for each in kept.values():
            if each.keeper is not None and not each.value.done():
                # The value is still being made, for a job that no longer waits for it.
                each.keeper.cancel()
        try:
            async with asyncio.timeout(LEAVE_WAIT_S):
                while made:
                    await self._leave(made[-1])
                    made.pop()
        except TimeoutError:
            names = ", ".join(kept.name for kept in reversed(made))
            log.error("dependencies were not left within %g s: %s", LEAVE_WAIT_S, names)  # noqa: TRY400 - says all
            for each in made:
                if each.keeper is not None:
                    each.keeper.cancel()

    async def _leave(self, kept: _Kept) -> None:
        if kept.keeper is not None:
            kept.over.set()
            # Without the shield, the timeout would cancel the keeper; if it ends without an error nevertheless, the
            # timeout would go unnoticed.
            await asyncio.shield(kept.keeper)
            return
        loop = asyncio.get_running_loop()
        left: asyncio.Future[None] = loop.create_future()

        def leave() -> None:
            try:
                kept.context.run(now, kept.stack.aclose())
            except BaseException as error:  # noqa: BLE001 - the others are left all the same
                self._failed(kept, error)
            with contextlib.suppress(RuntimeError):  # The loop is closed: it waits no longer.
                loop.call_soon_threadsafe(_set_once, left)

        # A dependency that hangs while it is left must not keep the process alive.
        threading.Thread(target=leave, name="rq-core-leave", daemon=True).start()
        await left


def _retrieved(there: asyncio.Future[Any]) -> None:
    """Read a future's error, so that asyncio does not log it if no handler waits for the future any more."""
    if not there.cancelled():
        there.exception()


def _set_once(left: asyncio.Future[None]) -> None:
    if not left.done():
        left.set_result(None)
