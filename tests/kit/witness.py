"""Lines that handlers write about their own runs, so that a test can see which handlers ran without asking Redis."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rq_core import current_job

WITNESS: Final = "RQ_CORE_TEST_WITNESS"
"""The variable that names the file."""


def write(what: str, **facts: Any) -> None:
    """Append one line in one write, so that a killed process leaves no half line.

    The line has two times: seconds on the monotonic clock that all processes of the machine share, and Unix ms.
    """
    known = {
        "what": what,
        "pid": os.getpid(),
        "at": time.monotonic(),
        "at_ms": time.time_ns() / 1e6,
    }
    line = json.dumps({**known, **facts}).encode() + b"\n"
    handle = os.open(os.environ[WITNESS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)


def note(what: str, **facts: Any) -> None:
    """Write a line with the running job, and the number of its claim."""
    job = current_job()
    write(what, queue=job.queue, job=job.id, claim=job.claim, **facts)


@contextlib.contextmanager
def noted(**facts: Any) -> Iterator[None]:
    """Record the start and the end of a handler.

    The end is ``end`` if the handler returns, and ``failed`` if it raises.
    """
    note("start", **facts)
    try:
        yield
    except BaseException:
        note("failed", **facts)
        raise
    note("end", **facts)


class Witness:
    """The lines of a file, read as they are written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._lines: list[dict[str, Any]] = []

    def lines(self, what: str | None = None) -> list[dict[str, Any]]:
        """Return all lines so far, or those with this word."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                fresh, end, _ = file.read().rpartition(b"\n")
            self._read += len(fresh) + len(end)
            self._lines += [json.loads(line) for line in fresh.splitlines()]
        return [line for line in self._lines if what is None or line["what"] == what]
