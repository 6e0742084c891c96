"""The demo's tasks, as a user would write them: functions with annotations, and a decorator."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, Final

from rq_core import App, Cap, RetryPolicy, current_job

WITNESS_VARIABLE: Final = "RQ_CORE_DEMO_WITNESS"
"""Names the file to which every finished job appends a line; the demo's own record, independent of SQL."""
QUEUE_VARIABLE: Final = "RQ_CORE_DEMO_QUEUE"
"""Names the demo's queue for the worker processes."""
QUEUE: Final = os.environ.get(QUEUE_VARIABLE) or f"demo-{os.getpid()}-{int(time.time())}"
"""A queue of its own, so that a shared server and database keep their other jobs."""
COMPRESS_CAP: Final = 2

app = App()


def witness(**facts: Any) -> None:
    """Append a line about this job."""
    job = current_job()
    line = json.dumps({"task": job.task, "job": job.id, "claim": job.claim, **facts})
    # One write of one line: appends of several processes do not mix.
    file = os.open(os.environ[WITNESS_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode() + b"\n")
    finally:
        os.close(file)


def file_digest(path: Path) -> tuple[str, int]:
    """The SHA-256 and the number of lines of a file."""
    sha, lines = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(1 << 16):
            sha.update(block)
            lines += block.count(b"\n")
    return sha.hexdigest(), lines


@app.task(queue=QUEUE, retry=RetryPolicy(max_attempts=3, base=0.2), timeout=60)
def digest(path: Path) -> None:
    """Hash one file and witness it."""
    sha, lines = file_digest(path)
    witness(path=str(path), sha256=sha, lines=lines)


@app.task(
    queue=QUEUE,
    caps=[Cap(COMPRESS_CAP)],
    retry=RetryPolicy(max_attempts=3, base=0.2),
    timeout=60,
)
def compress(path: Path) -> None:
    """Gzip one file and witness its sizes. At most two of these run at once, however many workers there are."""
    data = path.read_bytes()
    witness(path=str(path), size=len(data), packed=len(gzip.compress(data, 6)))
