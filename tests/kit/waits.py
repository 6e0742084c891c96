"""Starts waits for the ends of jobs in other threads, which get messages about these ends."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from rq_core import App, JobHandle, Outcome
from tests.kit.wait import wait_until

FOREVER_S: Final = 600.0
"""The time limit of a wait, in seconds. It is so long that the last poll, at the time limit, comes only after the test
has failed."""


def meanwhile(handle: JobHandle[Any], wait_s: float = FOREVER_S) -> Future[Outcome[Any]]:
    """Start a wait for a job in another thread, and return a future of its outcome.

    Returns when the thread is about to wait.
    """
    pool = ThreadPoolExecutor(1)
    began = threading.Event()

    def wait() -> Outcome[Any]:
        began.set()
        return handle.wait(wait_s)

    future = pool.submit(wait)
    pool.shutdown(wait=False)
    assert began.wait(FOREVER_S)
    return future


def in_thread(handle: JobHandle[Any], app: App) -> Future[Outcome[Any]]:
    """Start a wait for a job in another thread, and return a future of its outcome.

    Returns when the wait has subscribed, and has found the job alive.
    """
    future = meanwhile(handle)
    listens(app)
    return future


def listens(app: App) -> None:
    """Wait until all waits of the app have subscribed and have polled their jobs once."""
    waiter: Any = app.connections.waiter

    def all_hear() -> bool:
        waits = waiter._waits
        found = waits.all() if waits is not None else []
        return bool(found) and all(wait.hearing is not None for wait in found)

    wait_until(all_hear, "the waits hear")
