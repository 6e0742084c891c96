"""Runs the mirror's service in a thread during a block."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sql_audit.mirror import service
from sql_audit.mirror.redis_access import open_source
from sql_audit.store.connection.database import Database


@contextmanager
def mirroring(url: str, database: str | Database) -> Iterator[None]:
    """Mirror the queues of a server or a cluster during the block. Then stop the mirror, which must end."""
    stop = threading.Event()
    source = open_source(url, "rqc")
    thread = threading.Thread(
        target=service.run_mirror, args=(source, database), kwargs={"stop": stop}, name="mirror"
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        source.close()
    assert not thread.is_alive()
