"""The witness file: lines that handlers write about their runs. A test reads them to see which handlers ran."""

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
"""The environment variable with the path of the file."""


def write(what: str, **facts: Any) -> None:
    """Append a line in one write, so that a killed process leaves no half line.

    The line has the time twice: in seconds of the monotonic clock, which all processes share, and in Unix milliseconds.
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
    """Append a line with the current job and the number of its claim."""
    job = current_job()
    write(what, queue=job.queue, job=job.id, claim=job.claim, **facts)


@contextlib.contextmanager
def noted(**facts: Any) -> Iterator[None]:
    """Write a line at the start and at the end of the block. The second line has the word ``end``, or ``failed`` after
    an error."""
    note("start", **facts)
    try:
        yield
    except BaseException:
        note("failed", **facts)
        raise
    note("end", **facts)


class Witness:
    """A witness file, which a test reads while handlers write into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._lines: list[dict[str, Any]] = []

    def lines(self, what: str | None = None) -> list[dict[str, Any]]:
        """Return all lines, or all lines of one kind."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                fresh, end, _ = file.read().rpartition(b"\n")
            self._read += len(fresh) + len(end)
            self._lines += [json.loads(line) for line in fresh.splitlines()]
        return [line for line in self._lines if what is None or line["what"] == what]
