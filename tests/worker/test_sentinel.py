"""Failovers of Redis under Sentinel. For workers, a failover is an outage; lost events are reported."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rq_core import App
from rq_core.connections.async_client import AsyncClient
from rq_core.connections.client import Client
from rq_core.connections.transport import AsyncPoolTransport, PoolTransport
from rq_core.errors import ServerUnavailable, ServerUnsuitable
from rq_core.model.events import decode
from rq_core.protocol.engine.plan import Patience, ReplyError
from sql_audit.errors import AuditEmpty
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from tests.kit import auditlog, processes
from tests.kit.sentinels import SERVICE, SentinelGroup
from tests.kit.servers import RedisServer, engines
from tests.kit.wait import wait_until, wait_until_async
from tests.rigs import outages, shards

QUEUE = "failover"
PATIENT = Patience(unsent=60.0, unknown=60.0)

app = App()


@app.task(queue=QUEUE)
def deliver(n: int) -> None:
    """Do nothing: no worker of this file runs this task."""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    with SentinelGroup(engines()[0], tmp_path).up() as found:
        yield found


def fail_over(group: SentinelGroup) -> RedisServer:
    lost = group.lose_primary()
    group.wait_promoted(lost)
    return lost


@pytest.mark.parametrize("place", range(len(engines())), ids=[each.name for each in engines()])
@pytest.mark.slow
def test_a_worker_claims_again_after_a_failover(tmp_path: Path, place: int) -> None:
    """Checks two failovers. The old primary returns as a replica, and the second failover promotes it again."""
    found = outages.run(
        tmp_path, kinds=[outages.FAILOVER], times=2, seconds=1.0, engine=engines()[place]
    )

    assert [each.kind for each in found] == [outages.FAILOVER] * 2
    assert outages.problems(found) == []


@pytest.mark.parametrize("kind", shards.SENTINEL_KINDS)
@pytest.mark.parametrize("place", range(len(engines())), ids=[each.name for each in engines()])
@pytest.mark.slow
def test_a_worker_stops_using_a_replaced_primary_though_that_primary_is_alive(
    tmp_path: Path, place: int, kind: str
) -> None:
    """Checks an old primary that accepts writes, or answers NOREPLICAS, for ten seconds until Sentinel demotes it."""
    (found,) = shards.run([kind], times=1, seconds=4.0, on=[engines()[place]])

    assert shards.problems([found]) == [], found


@pytest.mark.slow
def test_a_producer_waits_for_the_failover_during_a_call(group: SentinelGroup) -> None:
    """Checks that each call gets an answer. Each acknowledged and replicated job exists once."""
    told: list[str] = []
    stop = threading.Event()
    troubles: list[Exception] = []

    def produce() -> None:
        with Client(group.url, patience=PATIENT) as client:
            while not stop.is_set():
                try:
                    told.extend(client.run(client.calls.enqueue.many([deliver.job(len(told))])).ids)
                except Exception as error:
                    troubles.append(error)
                    return

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        wait_until(lambda: len(told) > 50 or troubles, "jobs are enqueued")
        before = list(told)
        group.wait_replicated()
        lost = fail_over(group)
        after = len(told)
        wait_until(lambda: len(told) > after + 50 or troubles, "more jobs are", timeout=20)
    finally:
        stop.set()
        producer.join()
    assert troubles == []
    lost.start()
    group.wait_whole()

    with Client(group.url) as client:
        alive = set(client.run(client.calls.reads.snapshot(QUEUE))["jobs"])
        reasons = [
            decode(entry_id, raw)
            for entry_id, raw in client.run(client.calls.audit.read_outbox(QUEUE, "-", 10_000))
            if raw["type"] == "epoch_started"
        ]
    # What was acknowledged in the moments before the kill may be lost with the primary; nothing else.
    missing = [job_id for job_id in told if job_id not in alive]
    assert set(missing).isdisjoint(before)
    assert set(told[after + 1 :]) <= alive
    assert alive <= set(told)
    assert len(reasons) == 2, "the queue knows that its history is another one"


@pytest.mark.slow
async def test_an_async_producer_waits_for_the_failover_during_a_call(group: SentinelGroup) -> None:
    client = AsyncClient(group.url, patience=PATIENT)
    try:
        (first,) = (await client.run(client.calls.enqueue.many([deliver.job(1)]))).ids
        group.wait_replicated()
        lost = group.lose_primary()
        calling = asyncio.ensure_future(client.run(client.calls.enqueue.many([deliver.job(2)])))
        await wait_until_async(
            lambda: group.role(group.other(lost)) == "master", "it is", timeout=40
        )
        (second,) = (await asyncio.wait_for(calling, 20)).ids
        assert await client.run(client.calls.reads.job(first, [QUEUE]))
        assert await client.run(client.calls.reads.job(second, [QUEUE]))
    finally:
        await client.close()


@pytest.mark.slow
def test_restore_lists_jobs_that_never_reached_the_promoted_replica(
    group: SentinelGroup, tmp_path: Path
) -> None:
    """Checks acknowledged jobs that the mirror has copied and the replica never received. Verify proves the log."""
    audit = f"sqlite:///{tmp_path / 'audit.db'}"
    with processes.mirror(group.url, audit, log=tmp_path / "mirror.log") as mirror:
        with Client(group.url, patience=PATIENT) as client:
            (kept,) = client.run(client.calls.enqueue.many([deliver.job(1)])).ids
            wait_until(lambda: _is_logged(audit, kept), "it is mirrored", timeout=30)
            group.wait_replicated()
            replica = group.cut_replica_off()
            gone = client.run(client.calls.enqueue.many([deliver.job(n) for n in range(5)])).ids
            wait_until(lambda: all(_is_logged(audit, each) for each in gone), "they are mirrored")
            lost = group.lose_primary()
            replica.thaw()
            group.wait_promoted(lost)
            (later,) = client.run(client.calls.enqueue.many([deliver.job(9)])).ids
            wait_until(lambda: _is_logged(audit, later), "the log goes on", timeout=30)
            assert set(client.run(client.calls.reads.snapshot(QUEUE))["jobs"]) == {kept, later}
        mirror.end()

    status, said = _rq_core("audit", "verify", "--audit", audit, "--redis", group.url, "--json")
    assert (status, said["verdict"]) == (0, "holds"), said
    status, said = _rq_core("audit", "restore", "--audit", audit, "--redis", group.url, "--json")
    assert {each["job_id"] for each in said["queues"][QUEUE]["lost"]} == set(gone)


@pytest.mark.slow
def test_an_isolated_primary_with_min_replicas_accepts_no_writes(
    group: SentinelGroup,
) -> None:
    """Checks ``min-replicas-to-write``. The primary refuses each write that it cannot replicate."""
    primary = group.primary
    with primary.client() as control:
        control.config_set("min-replicas-to-write", 1)
    with Client(primary.url, patience=Patience(unsent=1.0)) as client:
        (kept,) = client.run(client.calls.enqueue.many([deliver.job(1)])).ids
        replica = group.cut_replica_off()
        with pytest.raises(ServerUnavailable, match="NOREPLICAS"):
            client.run(client.calls.enqueue.many([deliver.job(2)]))
        assert set(client.run(client.calls.reads.snapshot(QUEUE))["jobs"]) == {kept}
    lost = group.lose_primary()
    replica.thaw()
    group.wait_promoted(lost)
    with Client(group.url, patience=PATIENT) as client:
        (later,) = client.run(client.calls.enqueue.many([deliver.job(3)])).ids
        assert set(client.run(client.calls.reads.snapshot(QUEUE))["jobs"]) == {kept, later}


async def test_a_client_of_a_demoted_server_opens_new_connections(
    start_redis: Callable[..., RedisServer],
) -> None:
    """Checks a live server that answers READONLY on open connections.

    A new connection reaches the new primary, by Sentinel or by host name.
    """
    server = start_redis()
    for transport in (PoolTransport(server.url), AsyncPoolTransport(server.url)):

        async def exchange(*command: str, transport: Any = transport) -> Any:
            (reply,) = (
                await transport.exchange([command])
                if isinstance(transport, AsyncPoolTransport)
                else transport.exchange([command])
            )
            return reply

        before = await exchange("CLIENT", "ID")
        assert await exchange("CLIENT", "ID") == before
        await exchange("REPLICAOF", "127.0.0.1", "1")
        refusal = await exchange("SET", "it", "goes on")
        assert isinstance(refusal, ReplyError)
        assert str(refusal).startswith("READONLY")
        assert await exchange("CLIENT", "ID") != before
        await exchange("REPLICAOF", "NO", "ONE")
        closing = transport.close()
        if closing is not None:
            await closing


@pytest.mark.slow
def test_a_producer_follows_a_failover_that_an_operator_starts(group: SentinelGroup) -> None:
    """Checks an old primary that stays alive and becomes a replica."""
    with Client(group.url, patience=PATIENT) as client:
        (first,) = client.run(client.calls.enqueue.many([deliver.job(1)])).ids
        old = group.primary
        with group.sentinels[0].client() as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", SERVICE)
        group.wait_promoted(old)
        wait_until(lambda: group.role(old) == "slave", "the old primary follows", timeout=30)
        (second,) = client.run(client.calls.enqueue.many([deliver.job(2)])).ids
        assert set(client.run(client.calls.reads.snapshot(QUEUE))["jobs"]) == {first, second}


@pytest.mark.slow
def test_commands_accept_the_url_of_a_sentinel(group: SentinelGroup, tmp_path: Path) -> None:
    url = group.url
    with Client(url) as client:
        (job_id,) = client.run(client.calls.enqueue.many([deliver.job(1)])).ids

    assert _rq_core("queues", "--redis", url, "--json")[1][0]["queue"] == QUEUE
    assert _rq_core("job", job_id, "--redis", url, "--json")[0] == 0
    assert _rq_core("doctor", "--redis", url, "--json")[0] == 0
    assert _rq_core("cancel", job_id, "--redis", url)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("place", range(len(engines())), ids=[each.name for each in engines()])
def test_clients_connect_to_servers_and_sentinels_with_passwords(
    tmp_path: Path, place: int
) -> None:
    group = SentinelGroup(
        engines()[place], tmp_path, password="secret", sentinel_password="watchword"
    )
    with group.up():
        with Client(group.url) as client:
            client.run(client.calls.enqueue.many([deliver.job(1)]))
        with (
            Client(group.url.replace("secret", "wrong")) as client,
            pytest.raises(ServerUnsuitable, match="invalid username-password"),
        ):
            client.run(client.calls.reads.queues())
        with (
            Client(
                group.url.replace("watchword", "wrong"), patience=Patience(unsent=0.1)
            ) as client,
            pytest.raises(ServerUnavailable, match=rf"no sentinel names a primary of {SERVICE}"),
        ):
            client.run(client.calls.reads.queues())


@pytest.mark.slow
async def test_the_error_of_an_unknown_sentinel_service_names_the_service(
    group: SentinelGroup,
) -> None:
    url = group.url.replace(f"/{SERVICE}", "/typo")
    for transport in (PoolTransport(url), AsyncPoolTransport(url)):
        exchanged = transport.exchange([["PING"]])
        (reply,) = await exchanged if asyncio.iscoroutine(exchanged) else exchanged
        assert "knows no service typo" in str(reply)


def _is_logged(audit: str, job_id: str) -> bool:
    """Return whether the audit log has an event of this job."""
    database = Database(audit)
    try:
        migrate.check_current(database)
        return bool(
            auditlog.rows(database, "SELECT 1 FROM job_event WHERE job_id = :id", id=job_id)
        )
    except AuditEmpty:
        return False
    finally:
        database.close()


def _rq_core(*words: str) -> tuple[int, Any]:
    """Run `rq-core` with these arguments. Return its exit status and its JSON."""
    ran = processes.rq_core(*words)
    try:
        return ran.returncode, json.loads(ran.stdout)
    except ValueError:
        return ran.returncode, f"{ran.stdout}{ran.stderr}"
