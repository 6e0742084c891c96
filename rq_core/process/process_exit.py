"""Ends a process whose work is over, by force if threads or tasks keep the process alive.

Python waits for each thread that is not a daemon, and asyncio waits for its executor and its tasks. A handler may leave
a thread behind that never ends: an ``asyncio.to_thread`` that outlives its job's timeout, or an executor that is never
shut down. Then not even a signal would end the process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

log = logging.getLogger(__name__)

FORCE_AFTER_S: Final = 5.0
"""Seconds for the regular end of a process whose work is over."""
EXIT_FUNCTIONS_S: Final = 2.0
"""Seconds for the functions registered with ``atexit`` if the process is ended by force."""
HOLDERS_MAX: Final = 10
"""Maximum number of threads and tasks that the log line names."""


def begin(status: int) -> None:
    """Begin the end of this process. A background thread ends the process by force if the process still lives after
    FORCE_AFTER_S.

    At a forced end, a log line names the threads or tasks that keep the process alive. Then the ``atexit`` functions
    are called, and the log is flushed. ``status`` is the exit status.
    """
    exiting = threading.Event()
    # Registered last, so called first: the event is set when Python begins to call the exit functions.
    atexit.register(exiting.set)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    threading.Thread(
        target=_force, args=(status, exiting, loop), name="rq-core-ending", daemon=True
    ).start()


def end_now(status: int) -> NoReturn:
    """End this process now, although threads or tasks still run. The ``atexit`` functions are called first.

    Call ``begin`` before, because one of these functions may hang.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - what Python itself calls at its end
    _exit(status)


def _force(
    status: int, exiting: threading.Event, loop: asyncio.AbstractEventLoop | None
) -> NoReturn:
    time.sleep(FORCE_AFTER_S)
    # A filter of the app's log may raise an exception, and nothing else would end the process.
    with contextlib.suppress(Exception):
        log.error(
            "the work is over, but the process does not end: ending it by force after %g s. It is held by %s",
            FORCE_AFTER_S,
            "; ".join(holders(loop)),
        )
    if not exiting.is_set():
        calling = threading.Thread(target=atexit._run_exitfuncs, daemon=True)  # noqa: SLF001 - as above
        calling.start()
        calling.join(EXIT_FUNCTIONS_S)
    _exit(status)


def _exit(status: int) -> NoReturn:
    with contextlib.suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # The stream is closed, or no process reads it.
    os._exit(status)


def holders(loop: asyncio.AbstractEventLoop | None = None) -> list[str]:
    """Return the threads that keep this process alive, and the tasks of ``loop``. Each text names one thread or task,
    and the line of code that it runs."""
    frames = sys._current_frames()  # noqa: SLF001 - documented, for such a use
    main = threading.main_thread()
    threads = [each for each in threading.enumerate() if not each.daemon and each is not main]
    found = [f"thread {each.name}{_place(frames.get(each.ident or 0))}" for each in threads]
    if loop is not None and not loop.is_closed():
        for task in asyncio.all_tasks(loop):
            stack = task.get_stack(limit=1)
            found.append(f"task {task.get_name()}{_place(stack[0] if stack else None)}")
    if not found:
        found.append(f"the main thread{_place(frames.get(main.ident or 0))}")
    more = len(found) - HOLDERS_MAX
    return [*found[:HOLDERS_MAX], *([f"{more} more"] if more > 0 else [])]


def _place(frame: FrameType | None) -> str:
    if frame is None:
        return ""
    code = frame.f_code
    return f" in {code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})"


# Whether a process of this machine runs, is stopped by a signal, or has ended.


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process (SIGSTOP, Ctrl-Z). Returns False on a system without /proc."""
    return _state(pid) == "T"


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, or a debugger has stopped it. Returns False on a system without /proc."""
    state = _state(pid)
    return state in "tZX" if state else Path("/proc/self/stat").exists()


def exists(pid: int) -> bool:
    """Return whether a process with this id exists, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _state(pid: int) -> str:
    """Return the letter for a process' state in /proc. The text is empty if the process or /proc does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
