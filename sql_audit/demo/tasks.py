"""The demo's task, as a user would write one: a function with annotations, and a decorator."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Final

from rq_core import App, RetryPolicy, current_job

WITNESS_VARIABLE: Final = "RQ_CORE_DEMO_WITNESS"
"""Names the file to which every finished job appends a line; the demo's own record, independent of SQL."""

app = App()


def digest_of(path: Path) -> tuple[str, int]:
    """The SHA-256 and the number of lines of a file."""
    sha, lines = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(1 << 16):
            sha.update(block)
            lines += block.count(b"\n")
    return sha.hexdigest(), lines


@app.task(retry=RetryPolicy(max_attempts=3, base=0.2), timeout=60)
def digest(path: Path) -> None:
    """Hash one file and witness it."""
    sha, lines = digest_of(path)
    job = current_job()
    line = json.dumps(
        {"job": job.id, "claim": job.claim, "path": str(path), "sha256": sha, "lines": lines}
    )
    # One write of one line: appends of several processes do not mix.
    witness = os.open(os.environ[WITNESS_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(witness, line.encode() + b"\n")
    finally:
        os.close(witness)
