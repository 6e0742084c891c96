"""Threads for ``def`` handlers. No call waits for another, and one message to the event loop reports many ended
calls."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable

import pytest

from rq_core.worker.execution.threads import Threads
from tests.kit.wait import wait_until, wait_until_async

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nothing")


class Pool:
    def __init__(self, threads: int) -> None:
        self.ended: list[BaseException | None] = []
        self.threads: Threads[Callable[[], None]] = Threads(
            threads, "test", work=lambda thing: thing(), on_end=self.end
        )

    def end(self, _thing: Callable[[], None], error: BaseException | None) -> None:
        self.ended.append(error)

    async def wait(self, number: int) -> None:
        await wait_until_async(lambda: len(self.ended) == number, "all have ended")


async def test_as_many_calls_run_at_once_as_there_are_threads() -> None:
    pool = Pool(8)
    together = threading.Barrier(8)

    for _ in range(3):
        pool.ended.clear()
        for _ in range(8):
            pool.threads.submit(lambda: together.wait(10) and None)
        await pool.wait(8)
        assert pool.ended == [None] * 8
    assert len(pool.threads._threads) == 8
    pool.threads.close()


async def test_a_thread_that_hangs_delays_no_other_call() -> None:
    pool = Pool(2)
    release = threading.Event()
    pool.threads.submit(lambda: release.wait(10) and None)

    for _ in range(20):
        before = len(pool.ended)
        pool.threads.submit(lambda: None)
        await pool.wait(before + 1)

    release.set()
    await pool.wait(21)
    pool.threads.close()


async def test_threads_are_started_when_they_are_needed() -> None:
    pool = Pool(100)

    for n in range(50):
        pool.threads.submit(lambda: None)
        await pool.wait(n + 1)

    assert len(pool.threads._threads) == 1
    pool.threads.close()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
async def test_an_exception_is_reported_and_its_thread_is_used_again(error: BaseException) -> None:
    pool = Pool(1)

    def raises() -> None:
        raise error

    pool.threads.submit(raises)
    await pool.wait(1)
    pool.threads.submit(lambda: None)
    await pool.wait(2)

    assert pool.ended == [error, None]
    pool.threads.close()


async def test_calls_that_end_while_the_event_loop_is_busy_are_reported_in_one_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    told = []
    real = loop.call_soon_threadsafe
    monkeypatch.setattr(
        loop, "call_soon_threadsafe", lambda *args: told.append(args) or real(*args)
    )
    pool = Pool(4)
    done: list[None] = []

    for _ in range(100):
        pool.threads.submit(lambda: done.append(None))
    # The loop has no turn meanwhile.
    wait_until(lambda: len(pool.threads._ended) == 100, "all have ended")
    await pool.wait(100)

    assert len(done) == 100
    assert len(told) == 1
    pool.threads.close()


async def test_the_end_of_each_call_is_reported_though_many_calls_end_at_once() -> None:
    pool = Pool(4)

    for _ in range(200):
        before = len(pool.ended)
        for _ in range(10):
            pool.threads.submit(lambda: None)
        await pool.wait(before + 10)
    pool.threads.close()


async def test_a_callback_that_raises_does_not_affect_other_callbacks() -> None:
    pool = Pool(2)
    heard: list[int] = []

    def end(_thing: object, _error: object) -> None:
        heard.append(1)
        if len(heard) == 1:
            raise ValueError("no")

    pool.threads._on_end = end
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    for _ in range(5):
        pool.threads.submit(lambda: None)
    wait_until(lambda: len(pool.threads._ended) == 5, "all have ended")

    await wait_until_async(lambda: len(heard) == 5, "all were heard of")
    pool.threads.close()


async def test_context_variables_that_a_call_sets_do_not_reach_the_next_call() -> None:
    pool = Pool(1)
    seen = []

    def sets() -> None:
        seen.append(variable.get())
        variable.set("something")

    for n in range(2):
        pool.threads.submit(sets)
        await pool.wait(n + 1)

    assert seen == ["nothing", "nothing"]
    pool.threads.close()


async def test_a_call_is_refused_if_its_thread_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool(2)
    release = threading.Event()
    pool.threads.submit(lambda: release.wait(10) and None)

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start"):
            pool.threads.submit(lambda: None)
    pool.threads.submit(lambda: None)
    await pool.wait(1)

    release.set()
    await pool.wait(2)
    pool.threads.close()


async def test_threads_that_were_closed_begin_no_call_and_then_end() -> None:
    pool = Pool(1)
    release, begun = threading.Event(), threading.Event()
    ran = []

    def first() -> None:
        begun.set()
        release.wait(10)

    pool.threads.submit(first)
    wait_until(begun.is_set, "the first one runs")
    pool.threads.submit(lambda: ran.append(1))
    pool.threads.close()
    release.set()

    (thread,) = pool.threads._threads
    wait_until(lambda: not thread.is_alive(), "the thread has ended")
    assert ran == []
