"""Waits until a condition is true, instead of for a fixed time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

TIMEOUT_S = 30.0
"""The timeout in seconds. It is long, since a busy machine may be many times slower than others, and only a failing
test waits until the timeout."""
POLL_S = 0.005
POLL_S_MAX = 0.1


def wait_until(
    predicate: Callable[[], T], describe: str | Callable[[], str], *, timeout: float = TIMEOUT_S
) -> T:
    """Call `predicate` until it returns a true value, and return that value. Raises AssertionError after the timeout.

    `describe` is the text of the error: what the test waits for. It may be a function that returns the text.
    """
    deadline = time.monotonic() + timeout
    pause = POLL_S
    while not (value := predicate()):
        if time.monotonic() >= deadline:
            raise AssertionError(_timed_out(describe, timeout))
        time.sleep(pause)
        pause = min(pause * 1.5, POLL_S_MAX)
    return value


@overload
async def wait_until_async(
    predicate: Callable[[], Awaitable[T]],
    describe: str | Callable[[], str],
    *,
    timeout: float = ...,
) -> T: ...
@overload
async def wait_until_async(
    predicate: Callable[[], T], describe: str | Callable[[], str], *, timeout: float = ...
) -> T: ...
async def wait_until_async(
    predicate: Callable[[], Any],
    describe: str | Callable[[], str],
    *,
    timeout: float = TIMEOUT_S,
) -> Any:
    """Do as `wait_until` does, without blocking the event loop. `predicate` may be async."""
    deadline = time.monotonic() + timeout
    pause = POLL_S
    while True:
        answer = predicate()
        value = await answer if isinstance(answer, Awaitable) else answer
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(_timed_out(describe, timeout))
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, POLL_S_MAX)


def _timed_out(describe: str | Callable[[], str], timeout: float) -> str:
    return f"not within {timeout:g} s: {describe if isinstance(describe, str) else describe()}"
