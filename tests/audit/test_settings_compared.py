"""Settings and limits that a client changed without the scripts. The doctor finds the changes with the log in SQL."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rq_core.connections.client import Client
from rq_core.model.keys import queue_keys
from rq_core.protocol.engine.plan import Plan
from rq_core.protocol.reads.reads import Reads
from sql_audit.proof.compare.drift import compare
from sql_audit.store.connection.database import Database
from tests.audit.epochs.forgetting import enqueue
from tests.audit.test_compared_while_busy import doctor
from tests.kit.agreement import drain
from tests.kit.fleet import QUEUE
from tests.kit.servers import RedisServer

KEYS = queue_keys(QUEUE)


def configure(client: Client, **settings: int) -> None:
    client.run(client.calls.admin.configure(QUEUE, settings))


def cap(client: Client, scope: str, limit: str) -> None:
    client.run(client.calls.caps.set(QUEUE, [(scope, limit, -1)]))


@pytest.fixture
def mirrored(client: Client, database: Database) -> Database:
    """Return the log of a queue. Redis has trimmed the events of the queue's changed settings and limits."""
    enqueue(client, "a")
    configure(client, lease_ms=5_000)
    configure(client, paused=1)
    cap(client, "tenant", "3")
    cap(client, "tenant", "4")
    configure(client, paused=0)
    for n in range(3):
        enqueue(client, f"later-{n}")
        drain(client, database)
    return database


def test_the_doctor_does_not_report_a_setting_that_a_call_changed(
    client: Client, mirrored: Database
) -> None:
    configure(client, paused=1)  # Not mirrored yet.

    assert compare(client, mirrored, QUEUE) == ([], [])


LIES = {
    "paused": ("meta", "paused", "1", "paused is '1' in `meta`, '0' by the log"),
    "lease": ("meta", "lease_ms", "1", "lease_ms is '1' in `meta`, '5000' by the log"),
    "bound": ("meta", "backlog_max_jobs", "5", "backlog_max_jobs is '5' in `meta`, '1000000'"),
    "limit": ("caps", "tenant", "9 version=2 from=live", "the limit of tenant is 9 in `caps`, 4"),
}


@pytest.mark.parametrize("name", LIES)
def test_the_comparison_with_sql_finds_a_setting_that_was_changed_by_hand(
    client: Client, mirrored: Database, valkey: RedisServer, name: str
) -> None:
    key, field, value, says = LIES[name]
    with valkey.client() as control:
        control.hset(KEYS(key), field, value)

    (violation,), notes = compare(client, mirrored, QUEUE)

    assert (violation.invariant, violation.job_id, notes) == ("I8", None, [])
    assert violation.says.startswith(says)


def test_the_doctor_reports_a_difference_of_outbox_and_sql_once(
    client: Client, mirrored: Database, valkey: RedisServer
) -> None:
    configure(client, lease_ms=6_000)
    with valkey.client() as control:
        control.hset(KEYS("meta"), "lease_ms", "7000")

    told = doctor(mirrored, valkey.url)

    assert told.exit_code == 1
    assert told.output.count("lease_ms is '7000'") == 1


def test_a_pause_that_is_set_during_the_comparison_is_not_reported_as_a_difference(
    client: Client, mirrored: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Reads.snapshot

    def snapshot(self: Reads, queue: str) -> Plan[dict[str, object]]:
        found = yield from look(self, queue)
        configure(client, paused=1)
        drain(client, mirrored)
        return found

    monkeypatch.setattr(Reads, "snapshot", snapshot)

    assert compare(client, mirrored, QUEUE) == ([], [])


def test_a_pause_that_redis_lost_is_not_reported_as_a_difference(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    server = start_redis()
    with Client(server.url) as client:
        enqueue(client, "a")
        drain(client, database)
        with server.client() as control:
            control.save()
        configure(client, paused=1)
        drain(client, database)
        server.kill()
        server.start()
        enqueue(client, "b")
        drain(client, database)

        assert compare(client, database, QUEUE) == ([], [])
        with server.client() as control:
            control.hset(KEYS("meta"), "paused", "1")
        ((violation,), _) = compare(client, database, QUEUE)

    assert violation.says.startswith("paused is '1'")
