"""Checked by mypy, never run: what callers of the embedded server may write and may not."""

from pathlib import Path
from typing import assert_type

from rq_core.embedded import server

assert_type(server.ensure("data"), str)
assert_type(server.ensure(Path("data"), idle_s=60), str)
assert_type(server.stop(), bool)
assert_type(server.status().pid, int | None)

server.ensure("data", 60)  # type: ignore[call-arg]  # options are keywords
server.status().running = True  # type: ignore[misc]  # a status is a fact, not a switch
