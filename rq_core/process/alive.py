"""Whether a process of this machine runs, is stopped by a signal, or has ended."""

from __future__ import annotations

import os
from pathlib import Path


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
    """The letter of its state as /proc has it; empty: there is no such process, or no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
