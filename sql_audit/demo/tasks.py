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
"""The environment variable that names the witness file. Each run of a job appends a line to this file when its work is
done, so it is a record of the jobs that does not depend on SQL."""
QUEUE_VARIABLE: Final = "RQ_CORE_DEMO_QUEUE"
"""The environment variable that names the demo's queue for the worker processes."""
QUEUE: Final = os.environ.get(QUEUE_VARIABLE) or f"demo-{os.getpid()}-{int(time.time())}"
"""The name of the demo's queue: new for each run, so that the demo can use a server and a database that have other
queues."""
COMPRESS_CAP: Final = 2

app = App()


def witness(**facts: Any) -> None:
    """Append a line about the current job to the witness file."""
    job = current_job()
    line = json.dumps({"task": job.task, "job": job.id, "claim": job.claim, **facts})
    # One write of one line: appends of several processes do not mix.
    file = os.open(os.environ[WITNESS_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode() + b"\n")
    finally:
        os.close(file)


def file_digest(path: Path) -> tuple[str, int]:
    """Return the SHA-256 (hex) and the number of lines of a file."""
    sha, lines = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(1 << 16):
            sha.update(block)
            lines += block.count(b"\n")
    return sha.hexdigest(), lines


@app.task(queue=QUEUE, retry=RetryPolicy(max_attempts=3, base=0.2), timeout=60)
def digest(path: Path) -> None:
    """Hash one file and append its digest and number of lines to the witness file."""
    sha, lines = file_digest(path)
    witness(path=str(path), sha256=sha, lines=lines)


@app.task(
    queue=QUEUE,
    caps=[Cap(COMPRESS_CAP)],
    retry=RetryPolicy(max_attempts=3, base=0.2),
    timeout=60,
)
def compress(path: Path) -> None:
    """Compress one file with gzip, and append both sizes to the witness file. A cap lets at most two of these jobs run
    at once.
    """
    data = path.read_bytes()
    witness(path=str(path), size=len(data), packed=len(gzip.compress(data, 6)))
