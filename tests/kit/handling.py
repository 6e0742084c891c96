"""Tasks with dependencies, on the event loop, in threads and in processes.

A witness file has a line for each dependency that is entered or exited.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated, Final

from rq_core import App, Depends, JobContext, RetryPolicy, current_job
from tests.kit.crew import LEASE
from tests.kit.witness import write

app = App()
app.queue("crew", lease=LEASE)
QUICK: Final = RetryPolicy(max_attempts=3, backoff="fixed", base=0.01, jitter=False)


@contextmanager
def witnessed(name: str) -> Iterator[None]:
    """Write a witness line when the block is entered, and one when it is exited.

    The second line has the error with which the block ended, and the state of the job.
    """
    job = current_job()
    write("entered", name=name, claim=job.claim)
    error: str | None = None
    try:
        yield
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        state = app.handle_by_id(job.queue, job.id).state()
        write("left", name=name, claim=job.claim, error=error, state=state)


def pool() -> Iterator[str]:
    write("opened")
    yield "pool"
    write("closed")


async def async_pool() -> AsyncIterator[asyncio.AbstractEventLoop]:
    write("opened")
    yield asyncio.get_running_loop()
    await asyncio.sleep(0)
    write("closed")


def session(pool: Annotated[str, Depends(pool, scope="process")]) -> Iterator[str]:
    with witnessed("session"):
        yield f"session of {pool}"


async def async_session(
    loop: Annotated[asyncio.AbstractEventLoop, Depends(async_pool, scope="process")],
) -> AsyncIterator[None]:
    assert loop is asyncio.get_running_loop(), "a process has one loop for its life"
    with witnessed("session"):
        await asyncio.sleep(0)
        yield
        await asyncio.sleep(0)


@app.around
def around(_job: JobContext) -> Iterator[None]:
    with witnessed("around"):
        yield


def end(how: str) -> None:
    write("begin", how=how, claim=current_job().claim)
    if how == "fail":
        raise ValueError(how)
    if how == "kill" and current_job().claim == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while how == "deaf" and app.handle_by_id("crew", current_job().id).state() != "dead":
        time.sleep(0.01)  # It looks at nothing else: until it has been reported at its timeout.


async def end_async(how: str) -> None:
    end(how)
    if how == "wait":
        await asyncio.sleep(60)


def end_in_thread(how: str) -> None:
    end(how)
    if how == "wait":
        current_job().wait_cancelled(60)
        current_job().raise_if_cancelled()


@app.task(queue="crew", retry=QUICK, name="async")
async def on_loop(how: str, db: None = Depends(async_session)) -> None:
    await end_async(how)


@app.task(queue="crew", retry=QUICK, name="thread")
def in_thread(how: str, db: str = Depends(session)) -> None:
    assert db == "session of pool"
    end_in_thread(how)


@app.task(queue="crew", retry=QUICK, isolation="process")
def apart(how: str, db: str = Depends(session)) -> None:
    end_in_thread(how)


@app.task(queue="crew", retry=QUICK, isolation="process")
async def apart_async(how: str, db: None = Depends(async_session)) -> None:
    await end_async(how)


@app.task(queue="crew", retry=QUICK, isolation="process")
async def apart_forgetful(db: None = Depends(async_session)) -> None:
    """Start an asyncio task in the job's own process, and return while it still runs."""

    async def rest() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            write("rest cancelled")
            raise

    running.append(asyncio.create_task(rest()))
    await asyncio.sleep(0)
    write("begin", left=len([task for task in running if not task.done()]))


running: list[asyncio.Task[None]] = []


def hangs() -> Iterator[None]:
    write("entering")
    current_job().wait_cancelled(60)
    yield


async def hangs_async() -> AsyncIterator[None]:
    write("entering")
    await asyncio.sleep(60)
    yield


@app.task(queue="crew", retry=QUICK)
async def slow_to_begin(a: None = Depends(async_session), b: None = Depends(hangs_async)) -> None:
    write("begin")


@app.task(queue="crew", retry=QUICK)
def slow_to_begin_in_thread(a: str = Depends(session), b: None = Depends(hangs)) -> None:
    write("begin")


@app.task(queue="crew", retry=QUICK, name="headers")
async def headers_on_loop() -> None:
    write("headers", found=dict(current_job().headers))


@app.task(queue="crew", retry=QUICK, name="headers_in_thread")
def headers_in_thread() -> None:
    write("headers", found=dict(current_job().headers))


@app.task(queue="crew", retry=QUICK, isolation="process")
def headers_apart() -> None:
    write("headers", found=dict(current_job().headers))


theirs = logging.getLogger("theirs.below")


@app.task(queue="crew", retry=QUICK)
async def logging_on_loop() -> None:
    await asyncio.gather(
        _say("in a task of its own"), asyncio.to_thread(theirs.warning, "to_thread")
    )
    theirs.warning("on loop", extra={"queue": "said by itself", "more": 1})


async def _say(words: str) -> None:
    theirs.warning(words)


@app.task(queue="crew", retry=QUICK)
def logging_in_thread() -> None:
    theirs.warning("in thread")


@app.task(queue="crew", retry=QUICK, isolation="process")
def logging_apart() -> None:
    theirs.warning("apart")
