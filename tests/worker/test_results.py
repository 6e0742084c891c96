"""Results on their way from real workers to waiting callers. Handlers run on the event loop, in threads, and in
separate processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, computed_field

from rq_core import App, ResultUnavailable, RetryPolicy, Succeeded
from tests.kit.wait import wait_until_async
from tests.kit.working import working

LONG_S = 20.0


@dataclasses.dataclass
class Point:
    x: int
    y: Decimal


app = App()


@app.task(queue="results", keep_result=True)
def in_thread(x: int) -> Point:
    return Point(x, Decimal("1.50"))


@app.task(queue="results", keep_result=True)
async def on_loop(x: int) -> Point:
    return Point(x, Decimal("1.50"))


@app.task(queue="results", keep_result=True, isolation="process")
def apart(x: int) -> Point:
    return Point(x, Decimal("1.50"))


@app.task(queue="results", keep_result=True, isolation="process")
async def apart_on_loop(x: int) -> Point:
    return Point(x, Decimal("1.50"))


@app.task(queue="results", keep_result=True)
def untyped(kind: str):  # type: ignore[no-untyped-def]  # that is what it is for
    return {"object": object(), "long": "x" * 70_000, "nan": float("nan"), "list": [1, "b"]}[kind]


@app.task(queue="results", keep_result=True)
def says_int() -> int:
    return "no"  # type: ignore[return-value]  # what a value that does not fit does to its job


@app.task(queue="results")
def keeps_nothing() -> int:
    return 5


class Breaks:
    def __iter__(self) -> Any:
        raise SystemError("no")


class Computed(BaseModel):
    """A result whose encoding as JSON takes seconds, or ends the program."""

    how: str

    @computed_field  # type: ignore[prop-decorator]  # as pydantic's page has it
    @property
    def found(self) -> int:
        if self.how == "exits":
            raise SystemExit
        if self.how == "kills":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(6 if self.how == "slower" else 1)
        return 5


ONCE = RetryPolicy(max_attempts=1)


@app.task(queue="results", keep_result=True, timeout=0.5, retry=ONCE)
def computed_in_thread(how: str) -> Computed:
    return Computed(how=how)


@app.task(queue="results", keep_result=True, timeout=0.5, retry=ONCE)
async def computed_on_loop(how: str) -> Computed:
    return Computed(how=how)


@app.task(queue="results", keep_result=True, timeout=0.5, retry=ONCE, isolation="process")
def computed_apart(how: str) -> Computed:
    return Computed(how=how)


@pytest.fixture
def connected(valkey_url: str) -> App:
    app.connect_to(valkey_url)
    return app


@pytest.mark.slow
@pytest.mark.parametrize("task", [in_thread, on_loop, apart, apart_on_loop], ids=lambda t: t.name)
async def test_a_result_has_the_type_that_the_task_returns(connected: App, task: Any) -> None:
    async with working(connected, queues=("results",)):
        handle = await task.enqueue_async(3)
        value = await handle.result_async(LONG_S)

    assert Point(3, Decimal("1.50")) == value
    assert isinstance(handle.seen, Succeeded)


@pytest.mark.parametrize(
    "enqueue, reason, where",
    [
        (
            lambda: untyped.enqueue_async("object"),
            "not_json",
            "value is of type object, which has no JSON form",
        ),
        (lambda: untyped.enqueue_async("nan"), "not_json", "value holds NaN or an infinity"),
        (lambda: untyped.enqueue_async("long"), "too_large", "longer than 64 KiB"),
        (
            lambda: says_int.enqueue_async(),
            "not_json",
            "value does not fit the annotation: Input should be a",
        ),
    ],
    ids=["object", "nan", "long", "another type"],
)
async def test_a_result_that_cannot_be_kept_does_not_fail_its_job(
    connected: App,
    enqueue: Callable[[], Any],
    reason: str,
    where: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with working(connected, queues=("results",)):
        handle = await enqueue()
        outcome = await handle.wait_async(LONG_S)

    assert Succeeded(handle.id, missing=reason) == outcome
    (said,) = [r.getMessage() for r in caplog.records if "its result is not kept" in r.getMessage()]
    assert f": {reason}: " in said
    assert where in said
    with pytest.raises(ResultUnavailable) as caught:
        outcome.value  # noqa: B018 - it raises
    assert reason == caught.value.reason  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize(
    "enqueue, reason",
    [
        (lambda: computed_in_thread.enqueue_async("slow"), "unfinished"),
        # To start the process is part of its time.
        (lambda: computed_apart.with_options(timeout=4).enqueue_async("slower"), "unfinished"),
        (lambda: computed_on_loop.enqueue_async("slow"), None),
        (lambda: computed_in_thread.with_options(timeout=20).enqueue_async("exits"), "not_json"),
        (lambda: computed_apart.with_options(timeout=20).enqueue_async("exits"), "not_json"),
        (lambda: computed_on_loop.with_options(timeout=20).enqueue_async("exits"), "not_json"),
        (lambda: computed_apart.with_options(timeout=20).enqueue_async("kills"), "unfinished"),
    ],
    ids=[
        "slow in a thread", "slow in a process", "slow on the loop",
        "exits in a thread", "exits in a process", "exits on the loop", "kills its process",
    ],
)  # fmt: skip
async def test_a_result_that_fails_while_it_is_encoded_does_not_fail_its_job(
    connected: App, enqueue: Callable[[], Any], reason: str | None
) -> None:
    """Checks that the job does not run again. Its handler has returned."""
    async with working(connected, queues=("results",)):
        handle = await enqueue()
        outcome = await handle.wait_async(LONG_S)

    assert isinstance(outcome, Succeeded)
    assert reason == outcome.missing


async def test_the_option_keep_result_of_a_call_overrides_the_option_of_the_task(
    connected: App,
) -> None:
    async with working(connected, queues=("results",)):
        kept = await keeps_nothing.with_options(keep_result=60).enqueue_async()
        plain = await untyped.with_options(keep_result=False).enqueue_async("list")
        with pytest.raises(ResultUnavailable, match="keep_result=True"):
            await plain.result_async(LONG_S)
        value = await kept.result_async(LONG_S)

    assert 5 == value


async def test_each_of_several_hundred_results_reaches_the_handle_of_its_own_job(
    connected: App,
) -> None:
    async with working(connected, queues=("results",), concurrency=50):
        jobs = await connected.enqueue_many_async(on_loop.job(n) for n in range(600))
        by_id = {job_id: n for n, job_id in enumerate(jobs.ids)}
        found = {
            handle.id: (await handle.result_async(0)).x
            async for handle in connected.as_completed_async(jobs, LONG_S)
        }

    assert by_id == found


async def test_a_hundred_results_of_60_kb_that_end_together_reach_their_handles(
    connected: App,
) -> None:
    """Checks a hundred results of 60 KB each. A single call with all results would block Redis for other clients."""
    connected.task(queue="results", name="long", keep_result=True)(_long)
    long = connected.tasks["long"]
    async with working(connected, queues=("results",), concurrency=100):
        jobs = await connected.enqueue_many_async(long.job(n) for n in range(100))
        sizes = [
            len(await handle.result_async(0))
            async for handle in connected.as_completed_async(jobs, LONG_S)
        ]

    assert [60_000] * 100 == sizes


async def _long(n: int) -> str:
    return chr(ord("a") + n % 26) * 60_000


async def test_a_result_expires_after_the_given_time(connected: App) -> None:
    """Checks a late caller. The caller gets "expired", or Gone if Redis has already removed the result."""
    async with working(connected, queues=("results",)):
        handle = await on_loop.with_options(keep_result=0.3).enqueue_async(1)
        assert Point(1, Decimal("1.50")) == await handle.result_async(LONG_S)

    async def look() -> str | None:
        outcome = await connected.handle_by_id("results", handle.id).wait_async(0)
        return outcome.missing if isinstance(outcome, Succeeded) else type(outcome).__name__

    found = await wait_until_async(look, "the result is over")
    await connected.aclose()

    assert found in ("expired", "Gone")
