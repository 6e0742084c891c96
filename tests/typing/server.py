"""Calls of the embedded server that type checkers must accept or refuse. Only mypy and pyright read this file."""

from pathlib import Path
from typing import assert_type

from rq_core.embedded import server

assert_type(server.ensure_server("data"), str)
assert_type(server.ensure_server(Path("data"), idle_s=60), str)
assert_type(server.stop_server(), bool)
assert_type(server.server_status().pid, int | None)

server.ensure_server("data", 60)  # type: ignore[call-arg]  # options are keywords
server.server_status().running = True  # type: ignore[misc]  # a status is a fact, not a switch
