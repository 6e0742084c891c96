"""Forks a process at many different moments while another thread makes the first calls of an app.

    scripts/measure/once/run forks URL MOMENTS

This process imports only the app, and forks once per moment. In each child, a thread uses the app for the first time.
At the given moment, the child's main thread forks, as a preforking server does. The new process must be able to use the
app, too. See tests/app/test_forks.py.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from rq_core import App

HANGS_S: Final = 90
"""The time (s) after which a child process counts as hung."""
PAUSE_S: Final = 0.2
"""The longest time (s) for which the thread stops at the chosen moment of its work while the process forks. A fork may
have to wait until the thread continues."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(url: str, moments: int) -> int:
    app = App(redis=url)

    @app.task(queue="forks")
    def work(n: int) -> None: ...

    def use() -> None:
        work.enqueue(1)
        app.close()

    calls = _counted(use)
    failed = 0
    for moment in range(moments):
        at = 1 + moment * calls // moments
        where = _in_child(lambda at=at: _fork_at(at, use))  # type: ignore[misc]
        if where:
            say(f"forked at call {at} of {calls}: the child {where}")
            failed += 1
    say(f"{moments} moments, {failed} failed")
    return failed


def _in_child(work: Callable[[], int]) -> str:
    """Run ``work`` in a forked process. Return what went wrong, or an empty text."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(2 * HANGS_S)
        status = 70
        try:
            status = work()
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return f"hung (signal {os.WTERMSIG(status)})"
    return "" if status == 0 else f"ended with status {os.WEXITSTATUS(status)}"


def _counted(use: Callable[[], None]) -> int:
    """Return the number of Python function calls during the first use of the app, counted in a forked process."""
    reading, writing = os.pipe()

    def count() -> int:
        calls = 0

        def tracer(_frame: FrameType, event: str, _arg: Any) -> None:
            nonlocal calls
            calls += event == "call"

        thread = threading.Thread(target=_traced, args=(tracer, use))
        thread.start()
        thread.join()
        os.write(writing, str(calls).encode())
        return 0

    assert _in_child(count) == ""
    return int(os.read(reading, 100))


def _traced(tracer: Callable[..., Any], use: Callable[[], None]) -> None:
    sys.settrace(tracer)
    try:
        use()
    finally:
        sys.settrace(None)


def _fork_at(moment: int, use: Callable[[], None]) -> int:
    reached, forking, forked = threading.Event(), threading.Event(), threading.Event()
    calls = 0
    stack: list[str] = []

    def tracer(frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event == "call"
        if calls == moment and not reached.is_set():
            stack[:] = traceback.format_stack(frame)
            reached.set()
            forking.wait(HANGS_S)
            # A fork may wait for this thread to come to a point where it can be forked.
            forked.wait(PAUSE_S)

    thread = threading.Thread(target=_traced, args=(tracer, use))
    thread.start()
    reached.wait(HANGS_S)
    forking.set()
    pid = os.fork()
    if pid == 0:
        signal.alarm(HANGS_S)
        faulthandler.dump_traceback_later(HANGS_S - 1)
        status = 71
        try:
            use()
            status = 0
        finally:
            os._exit(status)
    forked.set()
    _, status = os.waitpid(pid, 0)
    thread.join(HANGS_S)
    if os.WIFSIGNALED(status):
        say("the child hangs; the thread was here:\n" + "".join(stack))
        return 72
    return os.WEXITSTATUS(status)


if __name__ == "__main__":
    sys.exit(min(run(sys.argv[1], int(sys.argv[2])), 100))
