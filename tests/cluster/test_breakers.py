"""Breakers in a cluster: their scopes move with the slot of their queue, also while a service fails."""

from __future__ import annotations

import asyncio
import time

import pytest

from rq_core import App, Breaker, RetryPolicy, current_job
from rq_core.doctor import diagnose
from rq_core.model.keys import queue_keys
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.clusters import RedisCluster
from tests.kit.mirroring import mirroring
from tests.kit.servers import engines
from tests.kit.wait import wait_until_async
from tests.kit.working import working
from tests.rigs.costs.breaker import events_of
from tests.rigs.judge.breakers import FAILED, OK, Claim, Judge, Limit, Run

JOBS = 8
HOSTS = ("h1", "h2")
LIMIT = Limit(3, 60_000, 100)


@pytest.mark.parametrize("engine", engines()[:1], ids=lambda each: each.name)
@pytest.mark.slow
async def test_a_breaker_still_pauses_and_resumes_while_the_slot_of_its_queue_moves(
    cluster: RedisCluster, sqlite_url: str
) -> None:
    """Checks a slot that moves to another node and back while the jobs of two hosts fail and their scopes pause."""
    (queue,) = next(iter(cluster.queues(1).values()))
    app, key = App(cluster.url), queue_keys(queue)("rates")
    runs: dict[Claim, Run] = {}
    is_ill = True

    @app.task(
        queue=queue,
        breaker=Breaker(LIMIT.failures, per_seconds=60, cooldown=0.1, per="host"),
        retry=RetryPolicy(max_attempts=1_000, base=0.0, jitter=False),
    )
    async def ask(host: str) -> None:
        job, began_ms, how = current_job(), time.time_ns() / 1e6, FAILED if is_ill else OK
        runs[job.id, job.claim] = Run(host, began_ms, job.failures, time.time_ns() / 1e6, how)
        if how == FAILED:
            raise ConnectionError(host)

    def count(host: str, how: str) -> int:
        return sum(run.host == host and run.how == how for run in runs.values())

    jobs = {ask.job(host): host for host in HOSTS * JOBS}
    with mirroring(cluster.url, sqlite_url):
        await app.enqueue_many_async(jobs)
        async with working(app, queues=[queue], concurrency=2):
            for _ in range(2):
                target = next(s for s in cluster.primaries() if s is not cluster.primary_of(key))
                for _step in cluster.migrating(key, target):
                    await asyncio.sleep(0.01)
                # The scopes have paused by then, so that all later runs are probes.
                before = {host: max(count(host, FAILED), LIMIT.failures + 2) for host in HOSTS}
                await wait_until_async(
                    lambda before=before: all(count(h, FAILED) > n for h, n in before.items()),  # type: ignore[misc]
                    "probes of both hosts run on the other node",
                )
            is_ill = False
            await wait_until_async(
                lambda: sum(count(host, OK) for host in HOSTS) == len(jobs), "all jobs succeed"
            )
        database = Database(sqlite_url)
        await wait_until_async(
            lambda: _succeeded(database, queue) == len(jobs), "the mirror has all events"
        )

    assert diagnose(app.client, queue) == []
    app.close()
    result = verify(database).queues[queue]
    events = events_of(auditlog.events(database, queue))
    database.close()
    assert (result.verdict, result.violations) == ("holds", [])
    # When a slot has moved, verify forgets the states of the scopes. The judge does not forget them.
    found = Judge(runs, {job.id: host for job, host in jobs.items()}, LIMIT).judge(events)
    assert found.problems == []
    assert (found.pauses, found.opened) == (2, 2)
    assert found.again >= 2


def _succeeded(database: Database, queue: str) -> int:
    return sum(row["type"] == "succeeded" for row in auditlog.events(database, queue))
