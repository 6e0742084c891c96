"""Helpers for tests in which Redis forgets data: a producer on the test's clock, and a query for orphaned events."""

from __future__ import annotations

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.operations import Operations
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.clock import timed
from tests.kit.fleet import QUEUE
from tests.kit.servers import RedisServer

TASK = profile("task")


START_MS = 1_800_000_000_000


MINUTE_MS = 60_000


def timed_client(server: RedisServer) -> Client:
    return Client(server.url, calls=Operations(Delivery(url=server.url, scripts=timed)))


def enqueue(client: Client, *names: str) -> None:
    assert (
        client.run(client.calls.enqueue.many(NewJob(name, QUEUE, TASK, "{}") for name in names)).ids
        == names
    )


def orphaned(database: Database) -> list[dict[str, object]]:
    return auditlog.rows(
        database, "SELECT epoch, seq, type, job_id FROM job_event_orphaned ORDER BY epoch, seq"
    )
