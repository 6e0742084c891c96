"""An attempt that is asked to stop while its dependencies are entered or exited, or after its end. No server is
used."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rq_core import Depends
from rq_core.app.handlers import process_scope
from rq_core.app.handlers.process_scope import Resources
from rq_core.signals import JobCancelled, LeaseLost, WorkerStopping
from rq_core.worker.execution import executor
from tests.kit.wait import wait_until_async
from tests.unit.test_executor import COMPLETE, Runs

seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


async def outer() -> AsyncIterator[None]:
    try:
        yield
    except BaseException as error:
        seen.append(("outer", type(error).__name__))
        raise
    else:
        seen.append(("outer", None))


async def test_a_cancellation_while_dependencies_are_entered_exits_the_entered_dependencies() -> (
    None
):
    entering = asyncio.Event()

    async def inner() -> AsyncIterator[None]:
        try:
            entering.set()
            await asyncio.Event().wait()
        finally:
            seen.append("inner ends")
        yield

    async def handler(a: None = Depends(outer), b: None = Depends(inner)) -> None:
        seen.append("handler")

    runs = Runs(handler)
    await entering.wait()
    runs.executor.end(runs.running[0], JobCancelled())  # type: ignore[arg-type]

    assert await runs.verdicts() == [("final", "cancelled")]
    assert seen == ["inner ends", ("outer", "CancelledError")]


async def test_the_timeout_of_an_attempt_includes_the_exit_of_all_its_dependencies() -> None:
    async def inner() -> AsyncIterator[None]:
        yield
        seen.append("leaving")
        await asyncio.Event().wait()

    async def handler(a: None = Depends(outer), b: None = Depends(inner)) -> None: ...

    assert await Runs(handler, timeout=0.05).verdicts() == [("retry", "failed")]
    assert seen == ["leaving", ("outer", "CancelledError")]


async def test_an_attempt_is_settled_even_if_the_exit_of_a_dependency_ignores_the_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executor, "END_GRACE_S", 0.05)
    released = asyncio.Event()

    async def inner() -> AsyncIterator[None]:
        yield
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                seen.append("swallowed")

    async def handler(b: None = Depends(inner)) -> None: ...

    runs = Runs(handler, timeout=0.05)
    await wait_until_async(lambda: runs.settlements, "it is settled")
    assert runs.free == [], "its place stays occupied"
    released.set()

    assert await runs.verdicts() == [("retry", "failed")]
    assert seen == ["swallowed"]


@pytest.mark.parametrize(
    ("why", "error", "verdicts"),
    [
        (LeaseLost(), "LeaseLost", []),
        (WorkerStopping(), None, [COMPLETE]),
        (JobCancelled(), None, [COMPLETE]),
    ],
)
async def test_dependencies_see_that_the_lease_is_lost_even_if_the_handler_returns_normally(
    why: Any, error: str | None, verdicts: Any
) -> None:
    """A database session must not commit the work of such a handler, since the next attempt will do it again."""
    begun = asyncio.Event()

    async def handler(a: None = Depends(outer)) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    runs = Runs(handler)
    await begun.wait()
    runs.executor.end(runs.running[0], why)  # type: ignore[arg-type]

    assert await runs.verdicts() == verdicts
    assert seen == [("outer", error)]


async def test_a_job_cancelled_while_a_dependency_is_entered_begins_no_handler() -> None:
    entering, go = threading.Event(), threading.Event()

    def slow() -> Iterator[None]:
        entering.set()
        assert go.wait(10)
        try:
            yield
        finally:
            seen.append("left")

    def handler(a: None = Depends(slow)) -> None:
        seen.append("handler")

    runs = Runs(handler)
    await wait_until_async(entering.is_set, "it enters")
    runs.executor.end(runs.running[0], JobCancelled())  # type: ignore[arg-type]
    go.set()

    assert await runs.verdicts() == [("final", "cancelled")]
    assert seen == ["left"]


async def test_a_handler_without_dependencies_is_called_without_a_wrapper() -> None:
    """A wrapper would cost time in each job."""

    async def handler() -> None: ...

    runs = Runs(handler)
    (running,) = runs.running
    assert running is not None
    assert running.function is handler
    assert await runs.verdicts() == [COMPLETE]


# What lives as long as the process.


async def test_concurrent_handlers_share_a_process_dependency_even_if_the_first_handler_is_cancelled() -> (
    None
):
    making, go = asyncio.Event(), asyncio.Event()

    async def pool() -> AsyncIterator[object]:
        seen.append("made")
        making.set()
        await go.wait()
        yield object()
        seen.append("left")

    async def handler(pool: object = Depends(pool, scope="process")) -> None:
        seen.append(pool)

    runs = Runs(handler, jobs=5)
    await making.wait()
    # It waits for what others wait for, too.
    runs.executor.end(runs.running[0], JobCancelled())  # type: ignore[arg-type]
    go.set()
    await wait_until_async(lambda: len(runs.free) == 5, "all have ended")
    await runs.executor.leave()

    assert sorted(await runs.verdicts()) == [COMPLETE] * 4 + [("final", "cancelled")]
    assert [seen[0], seen[-1]] == ["made", "left"]
    assert len(set(map(id, seen[1:5]))) == 1
    assert len(seen) == 6


async def test_threads_and_the_event_loop_share_a_process_dependency() -> None:
    making, go = threading.Event(), threading.Event()

    def pool() -> Iterator[object]:
        seen.append("made")
        making.set()
        assert go.wait(10)
        yield object()
        seen.append("left")

    steps: list[Any] = []

    def in_thread(pool: object = Depends(pool, scope="process")) -> None:
        seen.append(pool)

    runs = Runs(in_thread, jobs=3)
    await wait_until_async(making.is_set, "a thread makes it")
    steps = list(runs.app.tasks["handler"].steps.values())
    # The loop does not block meanwhile.
    waiting = asyncio.create_task(runs.executor._resources.value(steps[0], awaits=True))
    await asyncio.sleep(0)
    assert not waiting.done()
    go.set()
    found = await waiting
    await wait_until_async(lambda: len(runs.free) == 3, "all have ended")
    await runs.executor.leave()

    assert await runs.verdicts() == [COMPLETE] * 3
    assert seen == ["made", found, found, found, "left"]


async def test_the_end_of_the_worker_cancels_a_process_dependency_that_is_being_created() -> None:
    making = asyncio.Event()

    async def pool() -> AsyncIterator[None]:
        try:
            making.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("given up")
            raise
        yield

    async def handler(pool: None = Depends(pool, scope="process")) -> None: ...

    runs = Runs(handler)
    await making.wait()
    runs.executor.end(runs.running[0], JobCancelled())  # type: ignore[arg-type]
    await wait_until_async(lambda: runs.free, "it has ended")
    await runs.executor.leave()
    await asyncio.sleep(0)

    assert seen == ["given up"]
    assert await runs.verdicts() == [("final", "cancelled")]


async def test_a_failing_exit_of_a_process_dependency_stops_no_other_exit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each error is logged."""

    def first() -> Iterator[None]:
        yield
        seen.append("first left")

    async def second(first: None = Depends(first, scope="process")) -> AsyncIterator[None]:
        yield
        raise ConnectionError("away")

    def third(first: None = Depends(first, scope="process")) -> Iterator[None]:
        yield
        raise ConnectionError("far away")

    async def handler(
        a: None = Depends(second, scope="process"), b: None = Depends(third, scope="process")
    ) -> None: ...

    runs = Runs(handler)
    await wait_until_async(lambda: runs.free, "it has ended")
    await runs.executor.leave()

    assert await runs.verdicts() == [COMPLETE]
    assert seen == ["first left"]
    assert [record.message.rpartition(".")[2] for record in caplog.records] == [
        "third failed",
        "second failed",
    ]


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_process_dependency_whose_exit_does_not_end_is_given_up_after_a_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, in_thread: bool
) -> None:
    monkeypatch.setattr(process_scope, "LEAVE_WAIT_S", 0.05)
    released = threading.Event()

    def pool() -> Iterator[None]:
        yield
        released.wait(10)

    async def async_pool() -> AsyncIterator[None]:
        yield
        await asyncio.Event().wait()

    def in_a_thread(pool: None = Depends(pool, scope="process")) -> None: ...
    async def on_loop(pool: None = Depends(async_pool, scope="process")) -> None: ...

    runs = Runs(in_a_thread if in_thread else on_loop)
    await wait_until_async(lambda: runs.free, "it has ended")
    await runs.executor.leave()
    released.set()

    assert await runs.verdicts() == [COMPLETE]
    assert "dependencies were not left within 0.05 s: " in caplog.text


async def test_a_process_dependency_is_not_exited_while_a_handler_uses_it() -> None:
    begun, go = threading.Event(), threading.Event()

    def pool() -> Iterator[None]:
        yield
        seen.append("left")

    def handler(pool: None = Depends(pool, scope="process")) -> None:
        begun.set()
        assert go.wait(10)

    runs = Runs(handler)
    await wait_until_async(begun.is_set, "it runs")
    await runs.executor.leave()
    assert seen == []
    go.set()
    await wait_until_async(lambda: runs.free, "it has ended")
    await runs.executor.leave()

    assert await runs.verdicts() == [COMPLETE]
    assert seen == ["left"]


async def test_closing_process_dependencies_does_nothing_if_none_was_created() -> None:
    made = Resources()
    await made.close()
    await made.close()
