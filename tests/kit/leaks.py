"""Checks that a test leaves no thread, child process, asyncio task or open connection behind."""

import asyncio
import contextlib
import os
import threading
from pathlib import Path
from typing import Any
from weakref import WeakSet

import psutil
import redis.asyncio

from tests.kit.processes import command_of, lives
from tests.kit.reaper import reaper
from tests.kit.wait import wait_until, wait_until_async

# Python's own helper processes live as long as the process that first used them.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
GRACE_S = 3.0
LASTING = {"bus"}
"""The names of threads that live as long as a server that several tests share."""
_LISTED = any(Path("/proc/self/task").glob("*/children"))
"""True if the system lists the child processes of each thread."""
_connections: WeakSet[Any] = WeakSet()
"""The asyncio connections that redis-py has made, open or not."""


def watch_connections() -> None:
    """Remember each asyncio connection from now on, for ``assert_no_connections_of_closed_loops``."""
    make = redis.asyncio.Connection.__init__

    def made(connection: Any, *args: Any, **options: Any) -> None:
        make(connection, *args, **options)
        _connections.add(connection)

    setattr(redis.asyncio.Connection, "__init__", made)  # noqa: B010 - mypy refuses the assignment


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
    if not _LISTED:
        return {child.pid for child in psutil.Process().children()}
    found: set[int] = set()
    # Each test asks twice. To ask pathlib takes ten times as long.
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError),  # the thread has ended
            open(f"/proc/self/task/{task}/children", "rb") as file,  # noqa: PTH123
        ):
            found.update(map(int, file.read().split()))
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


def assert_no_connections_of_closed_loops() -> None:
    """Assert that no connection is open whose event loop is closed. Python reports such a connection only when it
    collects garbage, perhaps in another test."""
    left = [each for each in _connections if each.is_connected and each._writer._loop.is_closed()]
    _connections.difference_update(left)
    assert not left, f"the test leaves connections open: {left}"
