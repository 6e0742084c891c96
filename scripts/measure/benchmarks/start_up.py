"""Measures the time to import App, and the time until `rq-core --help` has printed its help."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

IMPORT = """
import time
began = time.perf_counter()
from rq_core import App
print(time.perf_counter() - began)
"""


def measure() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="rq-core-bytecode-") as place:
        # An installed package has its byte code, which pip writes; a clone may lack it, or be forbidden to write it.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": place}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _written in (False, True):
            said = _run(environment, "-c", IMPORT)
            began = time.perf_counter()
            _run(environment, "-m", "rq_core.cli", "--help")
            help_s = time.perf_counter() - began
    return {"import_ms": 1e3 * float(said), "help_ms": 1e3 * help_s}


def _run(environment: dict[str, str], *words: str) -> str:
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=True
    ).stdout
