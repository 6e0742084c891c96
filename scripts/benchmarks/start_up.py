"""How long it takes to import rq_core, and until `rq-core --help` has said what it says."""

from __future__ import annotations

import subprocess
import sys
import time

IMPORT = (
    "import time; began = time.perf_counter(); import rq_core; print(time.perf_counter() - began)"
)


def measure() -> dict[str, float]:
    said = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True
    ).stdout
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "rq_core.cli", "--help"], capture_output=True, check=True)
    return {"import_ms": 1e3 * float(said), "help_ms": 1e3 * (time.perf_counter() - began)}
