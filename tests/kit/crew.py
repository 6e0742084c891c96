"""The tasks of the worker tests, and worker processes that run them.

Each task writes its runs into a witness file. So a test sees which handlers ran without asking Redis.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Self

from pydantic import BaseModel, model_validator

from rq_core import (
    App,
    DeadJob,
    GiveUp,
    NotDurable,
    RetryLater,
    RetryPolicy,
    Snooze,
    current_job,
    durable,
    durable_sync,
)
from tests.kit import witness
from tests.kit.processes import Child, worker
from tests.kit.wait import wait_until, wait_until_async
from tests.kit.witness import WITNESS, note

LEASE = 1.0

app = App()
app.queue("crew", lease=LEASE)
quick = RetryPolicy(max_attempts=3, backoff="fixed", base=0.01, jitter=False)


@app.task(queue="crew", retry=quick)
async def coroutine(n: int = 0) -> None:
    note("coroutine", n=n)


@app.task(queue="crew", retry=quick)
def function(n: int = 0) -> None:
    note("function", n=n)


@app.task(queue="crew", retry=quick)
def failing(message: str = "no") -> None:
    note("failing")
    raise ValueError(message)


@app.task(queue="crew", retry=quick)
def fails_once() -> None:
    note("fails_once")
    if current_job().failures == 0:
        raise ValueError("the first time")


@app.task(queue="crew", retry=quick)
def gives_up() -> None:
    raise GiveUp("no use")


def _snooze() -> None:
    note("snoozes")
    if current_job().claim < 6:
        raise Snooze(0.01)


@app.task(queue="crew", retry=quick)
def snoozes() -> None:
    """Snooze more often than the job may fail."""
    _snooze()


@app.task(queue="crew", retry=quick)
async def snoozes_async() -> None:
    _snooze()


@app.task(queue="crew", retry=quick, isolation="process")
def snoozes_apart() -> None:
    _snooze()


@app.task(queue="crew", retry=quick)
def later() -> None:
    note("later")
    if current_job().failures == 0:
        raise RetryLater(after=0.02)


@app.task(queue="crew", retry=quick)
async def sleeping(seconds: float) -> None:
    """Sleep on the event loop. A cancellation ends the sleep."""
    note("begin")
    await asyncio.sleep(seconds)
    note("end")


@app.task(queue="crew", retry=quick)
async def tidying(seconds: float) -> None:
    """Sleep on the event loop. After a cancellation, clean up for a while."""
    note("begin")
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(seconds)
        note("tidied")


@app.task(queue="crew", retry=quick)
async def stubborn() -> None:
    """Sleep on the event loop, and ignore cancellations."""
    note("begin")
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


@app.task(queue="crew", retry=quick)
def dozing(seconds: float) -> None:
    """Sleep in a thread, and check again and again whether the job should stop."""
    note("begin")
    job = current_job()
    job.wait_cancelled(seconds)
    job.raise_if_cancelled()
    note("end")


@app.task(queue="crew", retry=quick)
def deaf(seconds: float) -> None:
    """Sleep in a thread, and never check whether the job should stop."""
    note("begin")
    time.sleep(seconds)
    note("end")


@app.task(queue="crew", retry=quick)
async def gated() -> None:
    """Wait on the event loop until the test opens the gate."""
    note("begin")
    gate = _gate(os.environ[WITNESS], current_job().claim)
    await wait_until_async(gate.exists, "the test says so", timeout=60)
    note("end")


@app.task(queue="crew", retry=quick)
def gated_in_thread() -> None:
    """Wait in a thread until the test opens the gate, and never check whether to stop."""
    note("begin")
    gate = _gate(os.environ[WITNESS], current_job().claim)
    wait_until(gate.exists, "the test says so", timeout=60)
    note("end")


def _gate(path: str | Path, claim: int) -> Path:
    return Path(f"{path}.gate-{claim}")


@app.task(queue="crew", retry=quick)
def stopping() -> None:
    """Suspend the worker's process (SIGSTOP) in the first claim, and end when a test resumes it."""
    note("begin")
    if current_job().claim == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    note("end")


def _effect(n: int) -> int:
    note("effect", n=n)
    return n


async def _awaited_effect(n: int) -> int:
    return _effect(n)


@app.task(queue="crew", retry=quick, max_losses=20)
async def steps_and_kills(steps: int, kills: int) -> None:
    """Save several steps, and kill the worker in each claim: first after the second step, then after the third, and so
    on."""
    job = durable()
    claim = current_job().claim
    for n in range(steps):
        await job.step("effect", _awaited_effect, n)
        if n == claim and claim <= kills:
            os.kill(os.getpid(), signal.SIGKILL)
    note("end")


@app.task(queue="crew", retry=quick, isolation="process")
def durable_apart(steps: int) -> None:
    """Save several steps in the job's own process. The first claim kills this process after its second step."""
    job = durable_sync()
    for n in range(steps):
        job.step("effect", _effect, n)
        if n == 1 and current_job().claim == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    note("end", base=current_job().base)


@app.task(queue="crew", retry=quick, isolation="process")
def shows_apart(chunks: int) -> None:
    """Show a progress and a stream from the job's own process, without a pause."""
    for n in range(1, chunks + 1):
        current_job().progress(n, chunks, "apart")
        current_job().emit(f"apart {n}")
    current_job().wait_cancelled(0.3)
    current_job().emit("last")


@app.task(queue="crew", retry=quick, isolation="process")
async def durable_apart_at_once(steps: int) -> None:
    """Save several steps at the same time in the job's own process. The first claim then kills this process."""
    job = durable()
    each = (job.options(key=str(n)).step("effect", _awaited_effect, n) for n in range(steps))
    await asyncio.gather(*each)
    if current_job().claim == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    note("end", base=current_job().base)


@app.task(queue="crew", retry=quick, isolation="process")
async def waits_apart() -> None:
    """Try to wait and to sleep in the job's own process, which is not possible there."""
    job = durable()
    for call in (job.wait("approval", str), job.sleep("nap", 1)):
        try:
            await call
        except NotDurable as error:
            note("refused", says=str(error))


def _stops() -> None:
    note("effect")
    if len(witness.Witness(Path(os.environ[WITNESS])).lines("effect")) == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


@app.task(queue="crew", retry=quick)
def stopping_in_a_step() -> None:
    """Suspend the worker's process (SIGSTOP) within the step of the first claim, until a test resumes it."""
    job = durable_sync()
    job.step("stops", _stops)
    job.step("behind", _effect, 7)


@app.task(queue="crew", retry=quick, timeout=0.2)
async def leaving(seconds: float) -> None:
    """Start a thread that still runs when the job's timeout is over."""
    note("begin")
    await asyncio.to_thread(time.sleep, seconds)


@app.task(queue="crew", retry=quick)
async def clinging(seconds: int) -> None:
    """Let C code hold the GIL for some seconds while the process exits. So the process cannot end by itself."""
    note("begin")
    atexit.register(ctypes.PyDLL(None).sleep, seconds)


@app.task(queue="crew", retry=quick)
async def hogging(seconds: float) -> None:
    """Block the event loop for some seconds."""
    note("begin")
    time.sleep(seconds)  # noqa: ASYNC251 - that is what it is for
    note("end")


@app.task(queue="crew", retry=quick)
def gripping(seconds: int) -> None:
    """Let C code hold the GIL for some seconds."""
    note("begin")
    ctypes.PyDLL(None).sleep(seconds)
    note("end")


def mourn(job: DeadJob) -> None:
    """Record a dead job. The app calls this hook for each dead job."""
    note("mourned", dead=job.id, facts=asdict(job))


async def mourn_async(job: DeadJob) -> None:
    mourn(job)


@app.task(queue="crew", retry=quick, on_dead=mourn)
def mortal(how: str) -> None:
    if how == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    raise GiveUp("no use") if how == "give up" else ValueError(how)


@app.task(queue="crew", retry=quick, on_dead=mourn_async)
async def mortal_async() -> None:
    raise ValueError("no")


class Ending(BaseException):
    """An exception that is neither an Exception nor a cancellation, as some test frameworks raise."""


class Speechless(Exception):
    """An exception that raises another error when its text is asked for."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Count(BaseModel):
    """An argument type whose validator raises an exception that pydantic does not catch."""

    n: int

    @model_validator(mode="after")
    def known(self) -> Self:
        if self.n == -1:
            raise KeyError(self.n)
        if self.n == -2:
            sys.exit("no")
        return self


@app.task(queue="crew", retry=quick)
async def counting(count: Count) -> None:
    note("counting", n=count.n)


_RAISED: dict[str, type[BaseException]] = {
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "CancelledError": asyncio.CancelledError,
    "Ending": Ending,
    "Speechless": Speechless,
}


@app.task(queue="crew", retry=quick)
async def raising(name: str) -> None:
    """Raise the exception with this name, on the event loop."""
    raise _RAISED[name]


@app.task(queue="crew", retry=quick)
def raising_in_thread(name: str) -> None:
    raise _RAISED[name]


@app.task(queue="crew", retry=quick)
def exiting(status: int) -> None:
    """End the worker's process at once in the first claim."""
    note("exiting")
    if current_job().claim == 1:
        os._exit(status)


@app.task(queue="crew", retry=quick)
async def poison() -> None:
    """Kill the worker that runs the job."""
    note("poison")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(queue="crew", retry=quick, isolation="process")
def apart(n: int = 0) -> None:
    """Run in a process of its own."""
    note("apart", n=n, mine=os.getpid())


@app.task(queue="crew", retry=quick, isolation="process", keep_result=True)
def apart_lasting(seconds: float) -> str:
    """Run for a long time in the job's own process, and never check whether to stop."""
    note("lasting")
    time.sleep(seconds)
    return "done"


@app.task(queue="crew", retry=quick, isolation="process", timeout=1.0)
def apart_hanging() -> None:
    """Let C code hold the GIL of the job's own process for an hour."""
    note("begin")
    ctypes.PyDLL(None).sleep(3600)


@app.task(queue="crew", retry=quick, isolation="process", timeout=1.0)
def apart_starting(crashes: bool) -> None:
    """Start a program from the job's own process, and then hang or crash."""
    note("begin", started=subprocess.Popen(["sleep", "3600"]).pid)  # noqa: S607
    if crashes:
        ctypes.string_at(0)
    time.sleep(3600)


@app.task(queue="crew", retry=quick, isolation="process")
def apart_crashing() -> None:
    """Crash in native code, in the job's own process."""
    note("begin")
    ctypes.string_at(0)


@app.task(queue="crew", retry=quick, isolation="process", max_memory=256 * 1024 * 1024)
def apart_greedy() -> None:
    note("begin")
    bytearray(1024 * 1024 * 1024)


@app.task(queue="crew", retry=quick, isolation="process")
async def apart_sleeping(seconds: float) -> None:
    """Sleep in the job's own process, and record a cancellation."""
    note("begin")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("cancelled")
        raise
    note("end")


@app.task(queue="crew", retry=quick, isolation="process")
def apart_deaf(seconds: float) -> None:
    note("begin")
    time.sleep(seconds)
    note("end")


@app.task(
    queue="crew",
    isolation="process",
    retry=RetryPolicy(max_attempts=5, base=0.01, jitter=False, give_up_on=KeyError),
)
def apart_raising(kind: str) -> None:
    note("raising", failures=current_job().failures)
    if kind == "give_up":
        raise GiveUp("no use")
    raise KeyError(kind) if kind == "key" else ValueError(kind)


def unsure(failures: int) -> float:
    """Raise an exception. A task has this function as its backoff."""
    raise ZeroDivisionError(failures)


unsurely = RetryPolicy(max_attempts=2, backoff=unsure, base=0.01, jitter=False)


@app.task(queue="crew", retry=unsurely)
async def retried_unsurely(message: str) -> None:
    raise ValueError(message)


@app.task(queue="crew", retry=unsurely)
def retried_unsurely_in_thread(message: str) -> None:
    raise ValueError(message)


@app.task(queue="crew", retry=unsurely, isolation="process")
def retried_unsurely_apart(message: str) -> None:
    raise ValueError(message)


class Witness(witness.Witness):
    """The file with the runs that the tasks recorded."""

    def let_end(self, claim: int = 1) -> None:
        """Open the gate at which the task waits in this claim."""
        _gate(self.path, claim).touch()

    def log(self) -> str:
        """Return what the worker processes have logged."""
        return self.path.with_suffix(".log").read_text()


def worker_process(url: str, seen: Witness, *options: str) -> Child:
    """Start a ``rq-core worker`` process with these tasks."""
    return worker(
        "tests.kit.crew:app",
        ["crew"],
        url,
        *options,
        log=seen.path.with_suffix(".log"),
        variables={WITNESS: str(seen.path)},
    )
