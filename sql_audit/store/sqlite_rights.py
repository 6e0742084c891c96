"""Why a SQLite database cannot be opened or written: its directory, its files, its file system."""

from __future__ import annotations

import errno
import os
import pwd
import sqlite3
from pathlib import Path
from typing import Final

_SIGNS: Final = ("readonly", "unable to open", "access permission")
BESIDE: Final = ("-wal", "-shm", "-mirror")
"""What the names of the files beside the database end with: its log, the log's index, the lock of who writes."""


def is_about_rights(error: BaseException) -> bool:
    """Whether SQLite, or the system, says that a file cannot be opened or written."""
    if isinstance(error, sqlite3.OperationalError):
        return any(sign in str(error) for sign in _SIGNS)
    return isinstance(error, OSError) and error.errno in (
        errno.EACCES,
        errno.EPERM,
        errno.EISDIR,
        errno.EROFS,
    )


def missing(path: Path) -> str | None:
    """What keeps this process from writing the database; None if nothing does that can be seen."""
    directory = path.parent
    if not directory.is_dir():
        return f"there is no directory {directory}: make it first"
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        return f"the file system of {directory} is mounted read-only"
    if path.is_dir():
        return f"{path} is a directory"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"user {_user()} may not write into the directory {directory}, where SQLite keeps files beside it"
    for each in (path, *(path.with_name(path.name + end) for end in BESIDE)):
        if each.exists() and not os.access(each, os.W_OK | os.R_OK):
            return f"user {_user()} may not write the file {each}"
    return None


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
