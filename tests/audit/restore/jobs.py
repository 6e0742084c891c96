"""Helpers for a queue that loses its data: they enqueue and claim jobs, and read which jobs were restored."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from click.testing import Result

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.table.machine import Priority
from rq_core.protocol.calls import claims
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.command import audit
from tests.kit.fleet import QUEUE
from tests.kit.snapshots import lines_of

FULL = 64 * 1024


HOUR_MS = 3_600_000


ERROR = '{"type":"ValueError","message":"no"}'


def job(job_id: str, **options: Any) -> NewJob:
    made = profile("task", options.pop("priority", Priority.NORMAL))
    args_json = options.pop("args_json", f'{{"of":"{job_id}"}}')
    return NewJob(job_id, QUEUE, made, args_json, **{"spec_max": FULL, **options})


def claim(client: Client, limit: int) -> dict[str, str]:
    """Claim jobs, and return their fences by id."""
    claimed = client.run(claims.claim(QUEUE, "w-1", limit))
    return {each.id: each.fence for each in claimed.jobs}


def complete(client: Client, held: dict[str, str]) -> dict[str, str]:
    return client.run(claims.complete(QUEUE, "w-1", list(held.items())))


def give_back(client: Client, held: dict[str, str]) -> None:
    records = [(i, fence, "stopping", "null", "", 0) for i, fence in held.items()]
    client.run(claims.rollback(QUEUE, "w-1", records))


def run_all(client: Client) -> list[str]:
    """Claim and complete all jobs that may be claimed, and return their ids in order."""
    ran: list[str] = []
    while held := claim(client, 100):
        ran += held
        assert complete(client, held) == {}
    return ran


def flush(client: Client) -> None:
    client.run(client.calls.delivery.ask([["FLUSHALL"]]))


def lines(client: Client) -> dict[str, str]:
    found: dict[str, str] = lines_of(client.run(client.calls.reads.snapshot(QUEUE)))
    return found


def restored(database: Database) -> Counter[str]:
    """Return how often each job was restored, by id."""
    found = auditlog.rows(database, "SELECT job_id FROM job_event WHERE type = 'restored'")
    return Counter(row["job_id"] for row in found)


@contextmanager
def mirroring(url: str, database: Database) -> Iterator[None]:
    """Run a mirror during the block."""
    stop = threading.Event()

    def work() -> None:
        with Client(url) as client:
            mirror = Mirror(Outbox(client), database, QUEUE)
            while not stop.is_set():
                mirror.turn()
                stop.wait(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def invoke(database: Database, url: str, *options: str) -> Result:
    address = str(database.address.render_as_string(False))
    command = ["restore", "--audit", address, "--redis", url, "--by", "ada", *options]
    return audit(*command)
