"""How a process ends when its work is over: in order, or by force where threads or tasks hold it.

Python waits for every thread that is not a daemon, and asyncio for its executor and its tasks. A handler may leave such
a thread behind: an ``asyncio.to_thread`` that outlives its job's timeout, or an executor that is never shut down. The
process would never end, and no signal would change that.
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
"""Seconds that a process gets to end in order when its work is over."""
EXIT_FUNCTIONS_S: Final = 2.0
"""Seconds that functions registered with ``atexit`` get when the process is ended by force."""
HOLDERS_MAX: Final = 10
"""Most threads and tasks that the log line names."""


def begin(status: int) -> None:
    """Say that this process' work is over. If the process still lives FORCE_AFTER_S later, end it by force.

    The log line names what held it. The functions registered with ``atexit`` are called and the log handlers flushed.
    ``status`` is the exit status then.
    """
    exiting = threading.Event()
    # Registered last, so called first: it shows that the exit functions have begun.
    atexit.register(exiting.set)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    threading.Thread(
        target=_force, args=(status, exiting, loop), name="rq-core-ending", daemon=True
    ).start()


def end_now(status: int) -> NoReturn:
    """Call the functions registered with ``atexit``, and end, whatever still runs. Call ``begin`` before: a function
    may hang."""
    atexit._run_exitfuncs()  # noqa: SLF001 - what Python itself calls at its end
    _exit(status)


def _force(
    status: int, exiting: threading.Event, loop: asyncio.AbstractEventLoop | None
) -> NoReturn:
    time.sleep(FORCE_AFTER_S)
    # Whatever a filter of the app's log raises: nothing else would end the process.
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
            continue  # It is closed, or no process reads it: nothing more can be said.
    os._exit(status)


def holders(loop: asyncio.AbstractEventLoop | None = None) -> list[str]:
    """Return what keeps this process from ending: threads, and tasks of ``loop``, each with the line at which it is."""
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
    """Return whether a process was stopped by a signal (SIGSTOP, Ctrl-Z). Where there is no /proc: False."""
    return _state(pid) == "T"


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, or is stopped by a debugger. Where there is no /proc: False."""
    state = _state(pid)
    return state in "tZX" if state else Path("/proc/self/stat").exists()


def exists(pid: int) -> bool:
    """Return whether there is a process of this id, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _state(pid: int) -> str:
    """Return the letter of its state as /proc has it; empty: there is no such process, or no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
