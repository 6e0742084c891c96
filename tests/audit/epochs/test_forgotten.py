"""Real losses: Redis forgets all or part of its data after a flush or an old snapshot. The log records the loss."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rq_core.connections.client import Client
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.result import LogVerdict
from sql_audit.queries import history as queries
from sql_audit.store.connection.database import Database
from tests.audit.epochs.forgetting import MINUTE_MS, START_MS, enqueue, orphaned, timed_client
from tests.kit import auditlog
from tests.kit.agreement import assert_agree, drain, states
from tests.kit.clock import Clock
from tests.kit.fleet import QUEUE, Fleet
from tests.kit.servers import RedisServer


@pytest.mark.parametrize("how", ["flushed", "restarted"])
def test_all_live_jobs_are_lost_when_redis_is_emptied(
    start_redis: Callable[..., RedisServer], database: Database, how: str
) -> None:
    server = start_redis()
    with Client(server.url) as client:
        fleet = Fleet(client, 1)
        fleet.run(60)
        enqueue(client, "waiting", "ran")
        drain(client, database)
        alive = set(client.run(client.calls.reads.snapshot(QUEUE))["jobs"])
        if how == "flushed":
            with server.client() as control:
                control.flushall()
        else:
            server.kill()
            server.start()
        fleet.held.clear()
        enqueue(client, "ran")
        fleet.run(60)

        result = assert_agree(client, database, LogVerdict.HOLDS)

    assert orphaned(database) == []
    assert result.orphans == 0
    (loss,) = result.losses
    assert loss.jobs == len(alive)
    assert f"{len(alive)} live jobs were lost" in loss.says
    found = states(database)
    assert {found[job_id] for job_id in alive - {"ran"}} == {"lost"}
    assert found["ran"] in ("ready", "running", "succeeded", "scheduled")
    reason = auditlog.one(database, "SELECT reason FROM job WHERE job_id = 'waiting'")["reason"]
    assert reason == "ready"
    open_claims = (
        "SELECT 1 FROM job_attempt a JOIN job j USING (job_id, queue) WHERE j.state = 'lost'"
    )
    assert auditlog.rows(database, f"{open_claims} AND a.outcome IS NULL") == []


def test_the_mirror_detects_an_emptied_redis_before_any_client_reconnects(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    server = start_redis()
    with Client(server.url) as client:
        enqueue(client, "a", "b")
        drain(client, database)
        server.kill()
        server.start()

        result = assert_agree(client, database, LogVerdict.HOLDS)

        assert client.run(client.calls.reads.counts(QUEUE)).audit
    assert states(database) == {"a": "lost", "b": "lost"}
    assert [loss.jobs for loss in result.losses] == [2]


def test_the_mirror_detects_a_loss_on_an_empty_server_with_a_slow_clock(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    server = start_redis()
    # A producer does not know what SQL has.
    with (
        timed_client(server) as client,
        timed_client(server) as producer,
        server.client() as control,
    ):
        Clock(control, START_MS)
        enqueue(client, "lost", "again")
        drain(client, database)
        control.flushall()
        Clock(control, START_MS - 5 * MINUTE_MS)
        enqueue(producer, "again", "new")

        result = assert_agree(client, database, LogVerdict.UNKNOWN)

    assert states(database) == {"lost": "lost", "again": "ready", "new": "ready"}
    assert orphaned(database) == []
    assert [loss.jobs for loss in result.losses] == [2]
    assert len(auditlog.rows(database, "SELECT 1 FROM quarantine WHERE kind = 'conflict'")) == 2


def test_after_a_restart_from_an_old_snapshot_the_later_events_are_marked_as_orphaned(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    server = start_redis()
    with Client(server.url) as client:
        fleet = Fleet(client, 2)
        fleet.run(80)
        enqueue(client, "kept")
        drain(client, database)
        fleet.run(20)
        with server.client() as control:
            control.save()
        last = client.run(client.calls.reads.snapshot(QUEUE))["outbox"][-1][0]
        fleet.run(60)
        enqueue(client, "forgotten")
        drain(client, database)
        before = len(auditlog.events(database, QUEUE))
        server.kill()
        server.start()
        fleet.run(60)

        result = assert_agree(client, database, LogVerdict.HOLDS)

    forgotten = orphaned(database)
    assert len(forgotten) == result.orphans > 0
    assert len(auditlog.events(database, QUEUE)) > before
    assert min((row["epoch"], row["seq"]) for row in forgotten) == _after(last)
    assert states(database)["forgotten"] == "lost"
    loss = next(loss for loss in result.losses if loss.orphaned)
    assert last in loss.says
    history = queries.history(database.readers, "forgotten")
    assert (history[0].type, history[0].orphaned) == ("enqueued", True)


def test_loading_a_snapshot_older_than_all_mirrored_events_marks_the_whole_log_as_orphaned(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    server = start_redis()
    with Client(server.url) as client, server.client() as control:
        enqueue(client, "a", "b")
        control.save()
        enqueue(client, "c")
        # As the ring does after enough events: SQL never sees what the snapshot has.
        control.xtrim(f"rqc:{{{QUEUE}}}:outbox", maxlen=1, approximate=False)
        drain(client, database)
        before = len(auditlog.events(database, QUEUE))
        server.kill()
        server.start()

        result = assert_agree(client, database, LogVerdict.HOLDS)

    assert states(database) == {"a": "ready", "b": "ready", "c": "lost"}
    assert result.orphans == before


def _after(entry_id: str) -> tuple[int, int]:
    epoch, seq = entry_id.split("-")
    return int(epoch), int(seq) + 1


def tail_of(server: RedisServer) -> Path:
    """Return the server's newest append-only file. The server appends to this file."""
    return max((server.directory / "appendonlydir").glob("*.incr.aof"))


@pytest.mark.parametrize("lost", ["1 byte", "300 bytes", "5000 bytes", "half a script"])
@pytest.mark.slow
def test_after_the_append_only_file_was_truncated_exactly_the_missing_events_are_marked_as_orphaned(
    start_redis: Callable[..., RedisServer], database: Database, lost: str
) -> None:
    server = start_redis(appendonly="yes", appendfsync="always")
    with Client(server.url) as client:
        fleet = Fleet(client, 3)
        fleet.run(120)
        told = client.run(client.calls.reads.snapshot(QUEUE))["outbox"]
        Mirror(Outbox(client), database, QUEUE).turn()
        fleet.run(5)
        drain(client, database)
        ours = {(e["epoch"], e["seq"]) for e in auditlog.events(database, QUEUE)}
        # The trims of the mirror are in the tail, too: without them Redis has the entries again.
        server.kill()
        tail = tail_of(server)
        content = tail.read_bytes()
        if lost == "half a script":
            begin = content.rindex(b"MULTI")
            keep = (begin + content.index(b"EXEC", begin)) // 2
        else:
            keep = len(content) - int(lost.split(maxsplit=1)[0])
        tail.write_bytes(content[:keep])
        server.start()
        fleet.run(40)

        result = assert_agree(client, database, LogVerdict.HOLDS)

    assert told
    beginning = auditlog.rows(
        database, "SELECT epoch, detail FROM job_event WHERE type = 'epoch_started'"
    )
    last = json.loads(beginning[-1]["detail"])["last"]
    forgotten = {(row["epoch"], row["seq"]) for row in orphaned(database)}
    assert forgotten == {at for at in ours if at >= _after(last)}
    assert result.losses


@pytest.mark.parametrize("goes_on", ["the same mirror", "another"])
def test_a_mirror_attaches_its_queue_again_after_redis_forgot_the_attachment_and_one_attempt_failed(
    start_redis: Callable[..., RedisServer], database: Database, goes_on: str
) -> None:
    """Checks a Redis that loads a snapshot from before the mirror attached the queue.

    The mirror commits a new epoch in SQL. Then its connection breaks, before it has attached the queue in Redis.
    """
    server = start_redis()
    broken: list[str] = []

    def break_once(step: str) -> None:
        if step == "committed" and broken == ["armed"]:
            broken.append(step)
            raise ConnectionError("Redis is away")

    with Client(server.url) as client:
        enqueue(client, "a")
        with server.client() as control:
            control.save()
        first = Mirror(Outbox(client), database, QUEUE, on_step=break_once)
        second = Mirror(Outbox(client), database, QUEUE)
        auditlog.drain(first)
        auditlog.drain(second)
        server.kill()
        server.start()
        enqueue(client, "b")
        broken.append("armed")
        with pytest.raises(ConnectionError):
            first.turn()
        auditlog.drain(first if goes_on == "the same mirror" else second)

        assert client.run(client.calls.reads.counts(QUEUE)).audit
        assert_agree(client, database, LogVerdict.HOLDS)
    assert states(database) == {"a": "ready", "b": "ready"}


def test_verify_reports_a_loss_that_left_no_trace_in_redis(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    """Checks a Redis that loads the same old state twice. That state has no trace of the first loss."""
    server = start_redis(appendonly="yes", appendfsync="always")

    def go_back(content: bytes) -> None:
        server.kill()
        tail_of(server).write_bytes(content)
        server.start()

    with Client(server.url) as client:
        enqueue(client, "kept")
        drain(client, database)
        known = client.run(client.calls.reads.snapshot(QUEUE))["outbox"][-1][0]
        past = tail_of(server).read_bytes()
        enqueue(client, "unseen")
        go_back(past)
        enqueue(client, "seen")
        drain(client, database)
        began = client.run(client.calls.delivery.handshake(QUEUE)).epoch
        go_back(past)
        enqueue(client, "last")
        result = assert_agree(client, database, LogVerdict.HOLDS)

    assert states(database) == {"kept": "ready", "seen": "lost", "last": "ready"}
    assert [str(loss.after) for loss in result.losses if loss.at.epoch == began] == [known]
    assert f"what followed {known}, if anything, is lost" in result.losses[0].says
