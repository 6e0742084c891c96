"""A mirror in a separate process, which suspends itself (SIGSTOP) within a transaction.

    python -m tests.kit.stopped_mirror REDIS_URL AUDIT_URL QUEUE STEP

STEP is one of sql_audit.mirror.turn.STEPS, or ``copying``, which is within a COPY of PostgreSQL. The database ends its
sessions after 4 s instead of half a minute, so that tests wait less.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from sql_audit.mirror.turn import Mirror, TurnOutcome
from sql_audit.store.connection import database
from tests.kit.outbox import StreamSource

TIMEOUT_MS = 4_000
"""The timeout (ms) of the database. Even on a busy machine, a test must notice the open transaction before this
timeout."""


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def copy_half(
    self: database.Database, connection: Any, statement: str, text: str, meanwhile: Any = None
) -> None:
    driver = connection.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(text)
        driver.pgconn.flush()
        stop()


def main() -> None:
    redis_url, audit_url, queue, fatal = sys.argv[1:]
    database.IDLE_TIMEOUT_MS = TIMEOUT_MS  # type: ignore[misc]
    if fatal == "copying":
        database.Database._copy = copy_half  # type: ignore[method-assign]
    stopped = False

    def on_step(step: str) -> None:
        nonlocal stopped
        if step == fatal and not stopped:
            stopped = True
            stop()

    mirror = Mirror(StreamSource(redis_url), database.Database(audit_url), queue, on_step=on_step)
    failures = 0
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if mirror.turn().outcome is TurnOutcome.IDLE:
                break
        except Exception:
            failures += 1
            database.Database._copy = REAL_COPY  # type: ignore[method-assign]
    sys.exit(10 + failures)


REAL_COPY = database.Database._copy

if __name__ == "__main__":
    main()
