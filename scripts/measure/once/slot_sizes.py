"""Measures how long a queue's slot in Redis Cluster takes to move, and how long its largest key blocks the nodes.

    scripts/measure/once/run slot-sizes 10000 100000

Each number is a number of waiting jobs, with arguments of 200 bytes. MIGRATE sends a key as a whole, and both nodes do
nothing else meanwhile. This time must be shorter than `cluster-node-timeout`, or the other nodes count the two as
failed.
"""

import sys
import time

from rq_core.connections.client import Client
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, Profile
from rq_core.model.keys import queue_keys
from tests.kit import servers
from tests.kit.clusters import RedisCluster
from tests.kit.reaper import close_reaper

ARGUMENTS = '{"text":"' + "x" * 188 + '"}'
CHUNK = 50_000


def measure(cluster: RedisCluster, count: int) -> None:
    ids, queue = JobIds(), f"of-{count}"
    keys = queue_keys(queue)
    with Client(cluster.url) as client:
        for at in range(0, count, CHUNK):
            more = range(min(CHUNK, count - at))
            client.run(
                client.calls.enqueue.many(
                    NewJob(ids(), queue, Profile("send"), ARGUMENTS) for _ in more
                )
            )
        source = cluster.primary_of(keys("meta"))
        target = next(s for s in cluster.primaries() if s is not source)
        sizes = {
            k: cluster.ask(source, "MEMORY", "USAGE", k, "SAMPLES", 0) or 0 for k in keys.all()
        }
        took = {}
        began = last = time.monotonic()
        for step in cluster.migrating(keys("meta"), target):
            now = time.monotonic()
            took[step] = now - last
            last = now
        moved = time.monotonic() - began
        client.run(client.calls.enqueue.many([NewJob(ids(), queue, Profile("send"), ARGUMENTS)]))
        away = time.monotonic() - began
        assert sum(client.run(client.calls.reads.counts(queue)).ready.values()) == count + 1
    largest = max(sizes, key=lambda key: sizes[key])
    sys.stdout.write(
        f"{cluster.engine.name} {cluster.engine.version()}: {count:,} jobs, {len(took) - 2} keys,"
        f" {sum(sizes.values()) / 2**20:.0f} MB, the largest {sizes[largest] / 2**20:.0f} MB ({largest}):"
        f" moved in {moved:.2f} s, nodes blocked for {max(took.values()):.2f} s at once,"
        f" enqueued again after {away:.2f} s\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        for engine in servers.engines():
            directory = servers.private_directory(f"{engine.name}-sizes")
            made = RedisCluster(engine, directory, **{"cluster-node-timeout": "15000"})
            try:
                made.start()
                for jobs in sys.argv[1:]:
                    measure(made, int(jobs))
            finally:
                made.stop()
    finally:
        close_reaper()
