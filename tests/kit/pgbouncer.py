"""A PgBouncer in transaction mode in front of a test's PostgreSQL."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tests.kit.servers import ServerDidNotStart, free_port, private_directory
from tests.kit.wait import wait_until

STOP_S = 10


@contextmanager
def pgbouncer(upstream: int, *, connections: int = 1) -> Iterator[int]:
    """Run a PgBouncer during the block, in front of the PostgreSQL at port ``upstream``. Yields its port.

    All clients of a database share ``connections`` connections to PostgreSQL. So a client may get a connection with the
    session state of another client. Raises ServerDidNotStart.
    """
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        raise ServerDidNotStart("pgbouncer is not installed: apt-get install pgbouncer")
    port, directory = free_port(), private_directory("pgbouncer")
    settings = directory / "pgbouncer.ini"
    settings.write_text(
        "[databases]\n"
        f"* = host=127.0.0.1 port={upstream} user=postgres\n"
        "[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        "auth_type = any\npool_mode = transaction\nquery_wait_timeout = 30\n"
        f"default_pool_size = {connections}\nmax_client_conn = 100\n"
    )
    # It refuses to run as root, and reads its settings as who it is.
    directory.chmod(0o755)
    identity = {"user": "nobody"} if os.geteuid() == 0 else {}
    with (directory / "pgbouncer.log").open("wb") as log:
        process = subprocess.Popen(
            [program, str(settings)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            **identity,  # type: ignore[call-overload]
        )

    def answers() -> bool:
        try:
            psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres").close()
        except psycopg.OperationalError:
            return process.poll() is not None
        return True

    try:
        wait_until(answers, "pgbouncer answers")
        if process.poll() is not None:
            raise ServerDidNotStart((directory / "pgbouncer.log").read_text())
        yield port
    finally:
        process.terminate()
        process.wait(STOP_S)
