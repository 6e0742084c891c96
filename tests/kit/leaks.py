"""Checks that a test leaves no thread, child process or asyncio task behind."""

import asyncio
import contextlib
import threading
from pathlib import Path

import psutil

from tests.kit.processes import command_of, lives
from tests.kit.reaper import reaper
from tests.kit.wait import wait_until, wait_until_async

# Python's own helper processes live as long as the process that first used them.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
GRACE_S = 3.0
LASTING = {"bus"}
"""The names of threads that live as long as a server that several tests share."""


def threads() -> set[threading.Thread]:
    lasting = {threading.main_thread().name, *LASTING}
    return {each for each in threading.enumerate() if each.name not in lasting}


def children() -> dict[int, str]:
    """Return the living child processes and their commands, without the servers that all tests share."""
    found = {}
    for pid in _child_pids() - reaper().watched - {reaper().pid}:
        command = command_of(pid)
        if lives(pid) and not any(each in command for each in HELPERS):
            found[pid] = command
    return found


def _child_pids() -> set[int]:
    """Return the process ids of this process' children.

    Linux lists them. On other systems all processes are examined, which takes milliseconds.
    """
    told = list(Path("/proc/self/task").glob("*/children"))
    if not told:
        return {child.pid for child in psutil.Process().children()}
    found: set[int] = set()
    for file in told:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found.update(map(int, file.read_text().split()))
    return found


def assert_no_new_threads(before: set[threading.Thread]) -> None:
    def left() -> list[str]:
        return sorted(each.name for each in threads() - before)

    wait_until(
        lambda: not left(), lambda: f"the test's threads end; left: {left()}", timeout=GRACE_S
    )


def assert_no_new_children(before: dict[int, str]) -> None:
    def left() -> dict[int, str]:
        return {pid: command for pid, command in children().items() if pid not in before}

    wait_until(
        lambda: not left(), lambda: f"the test's processes end; left: {left()}", timeout=GRACE_S
    )


async def assert_no_other_tasks(before: "set[asyncio.Task[object]]") -> None:
    """Assert that the event loop has no tasks but those in ``before``. Cancelled tasks get time to end."""

    def left() -> list[str]:
        return sorted(map(repr, asyncio.all_tasks() - before - {asyncio.current_task()}))

    await wait_until_async(
        lambda: not left(), lambda: f"the test's tasks end; left: {left()}", timeout=GRACE_S
    )
