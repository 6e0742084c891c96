"""The mirror's service in a separate process, which can suspend itself (SIGSTOP) within a transaction.

    python -m tests.kit.mirror_service REDIS_URL AUDIT_URL [STEP|- [TAKEOVER_MS]]

The service suspends itself when STEP comes for the second time. Otherwise it runs as `rq-core audit run`. STEP is one
of sql_audit.mirror.turn.STEPS, or ``copying``, which is within a COPY of PostgreSQL. TAKEOVER_MS replaces both timeouts
after which a suspended mirror loses its queue. SIGTERM ends the service with status 0.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from rq_core.connections.client import Client
from sql_audit.mirror import service
from sql_audit.mirror.redis_access import Outbox
from sql_audit.store.connection import database


def stopping_at(fatal: str) -> Callable[[str], None]:
    """Return a function that a mirror calls at each step. It suspends the process at the second call with this step."""
    left = 2

    def on_step(step: str) -> None:
        nonlocal left
        left -= step == fatal
        if step == fatal and left == 0:
            os.kill(os.getpid(), signal.SIGSTOP)

    return on_step


def main() -> None:
    redis_url, audit_url, *rest = sys.argv[1:]
    fatal = rest[0] if rest else "-"
    if len(rest) > 1:
        database.IDLE_TIMEOUT_MS = int(rest[1])  # type: ignore[misc]
        service.STALLED_MS = int(rest[1])  # type: ignore[attr-defined]
    on_step = stopping_at(fatal)
    real_copy = database.Database._copy

    def copy(
        self: database.Database,
        connection: Any,
        statement: str,
        text: str,
        meanwhile: Any = None,
    ) -> None:
        if "job_event" in statement:
            driver = connection.connection.driver_connection
            with driver.cursor() as cursor, cursor.copy(statement) as copying:
                copying.write(text)
                driver.pgconn.flush()
                on_step("copying")
                if meanwhile is not None:
                    meanwhile()
        else:
            real_copy(self, connection, statement, text, meanwhile)

    if fatal == "copying":
        database.Database._copy = copy  # type: ignore[method-assign]
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Client(redis_url, name="audit") as source:
        service.run_mirror(Outbox(source), audit_url, stop=stop, on_step=on_step)


if __name__ == "__main__":
    main()
