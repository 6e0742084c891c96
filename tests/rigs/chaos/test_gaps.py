"""Gaps of the log after a fault has emptied an outbox, as the chaos rig reads them."""

from __future__ import annotations

import time
from pathlib import Path

from redis import Redis

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.keys import queue_keys
from sql_audit.store.connection.database import Database
from tests.kit.agreement import drain
from tests.kit.fleet import QUEUE
from tests.kit.schemas import lay_schema
from tests.rigs.chaos.records import read_gaps


def test_a_gap_is_said_to_last_from_the_last_entry_before_it_to_the_first_entry_after_it(
    valkey_url: str, tmp_path: Path
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'audit.db'}")
    lay_schema(database)
    with Client(valkey_url) as client:

        def enqueue(name: str) -> None:
            client.run(client.calls.enqueue.many([NewJob(name, QUEUE, profile("task"), "{}")]))

        enqueue("before")
        drain(client, database)
        enqueue("unseen")
        # In whole milliseconds, as Redis tells when an event was: the next one may be of the same.
        emptied_ms = time.time_ns() // 1_000_000
        with Redis.from_url(valkey_url) as redis:
            redis.xtrim(queue_keys(QUEUE)("outbox"), maxlen=0)
        enqueue("after")
        drain(client, database)

    ((queue, entry), gap) = next(iter(read_gaps(database).items()))
    database.close()

    assert queue == QUEUE
    assert entry.endswith("-3")
    assert gap.after_ms <= emptied_ms <= gap.until_ms
