"""The mirror of a cluster with a frozen node. The mirror still copies the queues of the healthy shards."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from rq_core.connections.client import Client
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, profile
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.clusters import RedisCluster
from tests.kit.mirroring import mirroring
from tests.kit.schemas import lay_schema
from tests.kit.servers import engines
from tests.kit.wait import wait_until

QUEUES = 6
"""Number of queues on each shard. If the mirror waited for each queue of the frozen shard, a round would take seconds
for each of them."""
ROUNDS = 5
LATE_MAX_S = 4.0
"""Longest time, in seconds, until a new job is mirrored. The first round may wait once for the frozen node; later
rounds must not wait for seconds."""

ids = JobIds()


@pytest.mark.parametrize("engine", engines()[:1], ids=lambda engine: str(engine.name))
@pytest.mark.slow
def test_a_frozen_node_delays_the_mirror_once_and_not_once_for_each_queue(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    cluster.set("cluster-replica-no-failover", "yes")
    by_port = cluster.queues(QUEUES)
    frozen, healthy = cluster.primaries()[:2]
    database = Database(str(tmp_path / "audit.db"))
    lay_schema(database)

    def add(client: Client, *queues: str) -> str:
        jobs = [NewJob(ids(), queue, profile("t"), "{}") for queue in queues]
        return client.run(client.calls.enqueue.many(jobs)).ids[-1]

    def mirrored(job_id: str) -> bool:
        rows = auditlog.rows(database, "SELECT job_id FROM job")
        return job_id in [row["job_id"] for row in rows]

    with contextlib.ExitStack() as stack:
        stack.callback(database.close)
        client = stack.enter_context(Client(cluster.url))
        every = [name for names in by_port.values() for name in names]
        add(client, *every)
        stack.enter_context(mirroring(cluster.url, database))
        wait_until(
            lambda: len(auditlog.rows(database, "SELECT job_id FROM job")) == len(every),
            "all is mirrored",
            timeout=30,
        )
        # There is something to be read, and to be trimmed, of each queue when its node stops.
        add(client, *by_port[frozen.port])
        frozen.freeze()
        stack.callback(frozen.thaw)
        took = []
        for _ in range(ROUNDS):
            job_id = add(client, by_port[healthy.port][0])
            since = time.monotonic()
            wait_until(lambda job_id=job_id: mirrored(job_id), "it is mirrored", timeout=60)  # type: ignore[misc]
            took.append(time.monotonic() - since)

        assert max(took) < LATE_MAX_S, took
