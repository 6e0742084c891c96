"""Handlers that end after their timeout. Such a handler counts as timed out, even beside a blocked event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest
import uvloop

from rq_core import App, Depends, Failed, GiveUp, RetryPolicy, Succeeded, current_job
from tests.kit import crew
from tests.kit.wait import wait_until_async
from tests.kit.working import working

ONCE = RetryPolicy(max_attempts=1)
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def late(how: str, until: float) -> str:
    """Run for longer than the timeout."""
    time.sleep(until)
    if how == "raises":
        raise GiveUp("too late")
    return "done"


def timed_out(ended: Any) -> bool:
    assert isinstance(ended, Failed)
    assert ended.error is not None
    return ended.error.type == "HandlerTimeout"


@pytest.mark.parametrize("how", ["returns", "raises"])
@LOOPS
def test_an_async_handler_that_blocks_the_loop_beyond_its_timeout_is_timed_out(
    valkey_url: str, run: Callable[..., Any], how: str
) -> None:
    """Checks that the log has no success of this run."""
    app = App(valkey_url)

    @app.task(timeout=0.2, keep_result=True, retry=ONCE)
    async def blocks(how: str) -> str:
        return late(how, 0.5)

    async def main() -> Any:
        async with working(app):
            return await (await blocks.enqueue_async(how)).wait_async(20)

    ended = run(main())

    assert timed_out(ended)


def test_an_async_handler_that_suppresses_its_cancellation_is_timed_out(
    valkey_url: str,
) -> None:
    app = App(valkey_url)

    @app.task(timeout=0.2, keep_result=True, retry=ONCE)
    async def deaf() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "done"
        return "never"

    async def main() -> Any:
        async with working(app):
            return await (await deaf.enqueue_async()).wait_async(20)

    ended = asyncio.run(main())

    assert timed_out(ended)


class Beside:
    """An app with a handler that blocks the event loop while another handler runs."""

    def __init__(self, url: str) -> None:
        self.app = App(url)
        self.begun = threading.Event()
        self.blocked = threading.Event()
        self.ended = threading.Event()
        """A handler that ends late sets this event. The other handler then stops blocking the event loop."""
        self.free = threading.Event()

        @self.app.task(name="block")
        async def block(seconds: float) -> None:
            self.blocked.set()
            self.ended.wait(seconds)
            self.free.set()

        self._block = block

    def __call__(self, run: Callable[..., Any], task: Any, *, blocked_s: float) -> Any:
        """Run a job of the task beside a handler that blocks the event loop for ``blocked_s`` seconds. Return the job's
        outcome."""

        async def main() -> Any:
            async with working(self.app):
                job = await task.enqueue_async()
                await wait_until_async(self.begun.is_set, "it has begun")
                await self._block.enqueue_async(blocked_s)
                return await job.wait_async(20)

        return run(main())


@pytest.mark.slow
@pytest.mark.parametrize("looks", ["never", "waits", "looks", "raises"])
@LOOPS
def test_a_sync_handler_that_ends_late_is_timed_out_though_the_event_loop_is_blocked(
    valkey_url: str, run: Callable[..., Any], looks: str
) -> None:
    """Checks that the blocked event loop does not delay the timeout. The handler is asked to stop."""
    beside = Beside(valkey_url)
    stopped: list[bool] = []

    @beside.app.task(timeout=0.5, keep_result=True, retry=ONCE)
    def neighbour() -> str:
        job = current_job()
        beside.begun.set()
        beside.blocked.wait(20)
        if looks == "waits":
            job.wait_cancelled(20)
        elif looks == "looks":
            while not job.cancelled:
                time.sleep(0.01)
        else:
            late(looks, 0.6)
        stopped.append(job.cancelled and not beside.free.is_set())
        beside.ended.set()
        return "done"

    ended = beside(run, neighbour, blocked_s=1.5 if looks == "raises" else 20)

    assert timed_out(ended)
    assert stopped == ([] if looks == "raises" else [True])


left: list[str] = []


def session() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        left.append(type(error).__name__)
        raise
    left.append("committed")


@pytest.mark.slow
def test_a_session_of_a_handler_that_ends_late_is_rolled_back(
    valkey_url: str,
) -> None:
    """Checks that the database session does not commit. The job will run again."""
    beside = Beside(valkey_url)
    left.clear()

    @beside.app.task(timeout=0.5, retry=ONCE)
    def neighbour(held: Annotated[None, Depends(session)]) -> None:
        beside.begun.set()
        beside.blocked.wait(20)
        late("returns", 0.6)

    ended = beside(asyncio.run, neighbour, blocked_s=1.5)

    assert timed_out(ended)
    assert left == ["HandlerTimeout"]


@LOOPS
@pytest.mark.slow
def test_a_sync_handler_that_ends_in_time_succeeds_though_the_event_loop_is_blocked(
    valkey_url: str, run: Callable[..., Any]
) -> None:
    beside = Beside(valkey_url)

    @beside.app.task(timeout=3, keep_result=True, retry=ONCE)
    def neighbour() -> str:
        beside.begun.set()
        beside.blocked.wait(20)
        return "done"

    ended = beside(run, neighbour, blocked_s=3.5)

    assert isinstance(ended, Succeeded)
    assert ended.value == "done"


@pytest.mark.parametrize("in_time", [True, False])
@LOOPS
@pytest.mark.slow
def test_an_isolated_handler_that_ends_late_is_timed_out_though_the_event_loop_is_blocked(
    valkey_url: str,
    witness: crew.Witness,
    run: Callable[..., Any],
    in_time: bool,
) -> None:
    crew.app.connect_to(valkey_url)

    async def main() -> Any:
        async with working(crew.app, queues=("crew",)):
            # Its start takes nothing of the timeout.
            await crew.apart.enqueue_async(n=0)
            await wait_until_async(lambda: witness.lines("apart"), "a process is there", timeout=20)
            seconds = 1.0 if in_time else 2.5
            options = {"timeout": 2.0, "max_attempts": 1}
            job = await crew.apart_lasting.with_options(**options).enqueue_async(seconds)
            await wait_until_async(lambda: witness.lines("lasting"), "it has begun", timeout=20)
            await crew.hogging.enqueue_async(3.0)
            return await job.wait_async(20)

    try:
        ended = run(main())
    finally:
        crew.app.close()

    if in_time:
        assert isinstance(ended, Succeeded)
        assert ended.value == "done"
    else:
        assert timed_out(ended)
