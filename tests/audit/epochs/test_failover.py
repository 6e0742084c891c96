"""Failovers to a server with fewer events than the log, or with another clock."""

from __future__ import annotations

from collections.abc import Callable

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
from tests.kit.failover import fail_over
from tests.kit.fleet import QUEUE, Fleet
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until


class Pair:
    """Two servers. The second server is a replica of the first."""

    def __init__(self, start_redis: Callable[..., RedisServer]) -> None:
        self.first = start_redis()
        self.second = start_redis()
        self.follow(self.second, self.first)

    @staticmethod
    def follow(replica: RedisServer, primary: RedisServer) -> None:
        with replica.client() as control, primary.client() as other:
            control.replicaof("127.0.0.1", str(primary.port))

            def level() -> bool:
                ours, theirs = control.info("replication"), other.info("replication")
                return bool(
                    ours["master_link_status"] == "up"
                    and ours["slave_repl_offset"] == theirs["master_repl_offset"]
                )

            wait_until(level, "the replica has all", timeout=20)

    @staticmethod
    def promote(server: RedisServer) -> None:
        with server.client() as control:
            control.replicaof("NO", "ONE")


@pytest.mark.slow
def test_after_a_failover_to_a_lagging_replica_the_events_that_redis_lost_are_marked_as_orphaned(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    pair = Pair(start_redis)
    with Client(pair.first.url) as old, Client(pair.second.url) as new:
        fleet = Fleet(old, 4)
        fleet.run(80)
        enqueue(old, "kept")
        drain(old, database)
        pair.follow(pair.second, pair.first)
        # From here on the replica lags: it hears no more.
        pair.promote(pair.second)
        enqueue(old, "forgotten")
        fleet.run(40)
        drain(old, database)
        pair.first.kill()
        fleet.client = new
        enqueue(new, "afterwards")
        fleet.run(40)

        result = assert_agree(new, database, LogVerdict.HOLDS)
        enqueue(new, "forgotten")
        assert_agree(new, database, LogVerdict.HOLDS)

    assert result.orphans == len(orphaned(database)) > 0
    found = states(database)
    assert found["forgotten"] == "ready"
    history = queries.history(database.readers, "forgotten")
    assert [event.orphaned for event in history if event.type == "enqueued"] == [True, False]


def test_jobs_that_a_failover_lost_are_live_again_when_the_old_primary_takes_over_again(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    """Checks two failovers: from server A to its lagging replica B, and back to A. Server A lacks the events of B."""
    pair = Pair(start_redis)
    with Client(pair.first.url) as old, Client(pair.second.url) as new:
        enqueue(old, "before")
        drain(old, database)
        pair.follow(pair.second, pair.first)
        pair.promote(pair.second)
        enqueue(old, "of-a")
        drain(old, database)
        enqueue(new, "of-b")
        assert_agree(new, database, LogVerdict.HOLDS)
        assert states(database) == {"before": "ready", "of-a": "lost", "of-b": "ready"}
        enqueue(old, "never-mirrored")

        result = assert_agree(old, database, LogVerdict.UNKNOWN)

        assert states(database) == {
            "before": "ready", "of-a": "ready", "of-b": "lost", "never-mirrored": "ready",
        }  # fmt: skip
    assert [row["job_id"] for row in orphaned(database) if row["job_id"]] == ["of-b"]
    kept = auditlog.rows(database, "SELECT kind FROM quarantine")
    assert kept
    assert any("in quarantine" in note.says for note in result.notes)


@pytest.mark.slow
def test_the_mirror_notices_a_double_failover_on_open_connections(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    pair = Pair(start_redis)
    with Client(pair.first.url) as a, Client(pair.second.url) as b:
        mirror = Mirror(Outbox(a), database, QUEUE)
        enqueue(a, "one")
        auditlog.drain(mirror)
        pair.follow(pair.second, pair.first)
        pair.promote(pair.second)
        # What A takes now is lost when it follows B.
        enqueue(a, "two")
        auditlog.drain(mirror)
        pair.follow(pair.first, pair.second)
        enqueue(b, "three")
        pair.follow(pair.first, pair.second)
        pair.promote(pair.first)
        pair.second.kill()
        enqueue(a, "four")
        auditlog.drain(mirror)

        result = assert_agree(a, database, LogVerdict.HOLDS)

    assert states(database) == {"one": "ready", "two": "lost", "three": "ready", "four": "ready"}
    assert result.orphans == 1


@pytest.mark.slow
@pytest.mark.parametrize("who", ["the mirror", "a producer", "a producer at the same moment"])
def test_a_promoted_server_with_a_slow_clock_begins_a_later_epoch(
    start_redis: Callable[..., RedisServer], database: Database, who: str
) -> None:
    pair = Pair(start_redis)
    with (
        timed_client(pair.first) as old,
        timed_client(pair.second) as new,
        timed_client(pair.second) as producer,
        pair.first.client() as of_first,
        pair.second.client() as of_second,
    ):
        clock = Clock(of_first, START_MS)
        enqueue(old, "kept")
        drain(old, database)
        pair.follow(pair.second, pair.first)
        pair.promote(pair.second)
        clock.advance(10 * MINUTE_MS)
        fail_over(of_first)
        enqueue(old, "forgotten")
        drain(old, database)
        epoch = old.run(old.calls.reads.counts(QUEUE)).epoch
        pair.first.kill()
        # As long as nobody has met the queue, its epoch is the one of the replica that lagged.
        same = who == "a producer at the same moment"
        Clock(of_second, epoch if same else START_MS + 5 * MINUTE_MS)
        if who != "the mirror":
            enqueue(producer, "afterwards")
            assert producer.run(producer.calls.reads.counts(QUEUE)).epoch <= epoch

        verdict = {
            "the mirror": LogVerdict.HOLDS,
            "a producer": LogVerdict.UNKNOWN,
            "a producer at the same moment": LogVerdict.VIOLATED,
        }[who]
        result = assert_agree(new, database, verdict)

        assert new.run(new.calls.reads.counts(QUEUE)).epoch > epoch
    live = {"afterwards": "ready"} if who != "the mirror" else {}
    assert states(database) == {"kept": "ready", "forgotten": "lost", **live}
    assert result.orphans > 0
    if who != "the mirror":
        kept = auditlog.rows(database, "SELECT raw FROM quarantine")
        assert kept
    if verdict is LogVerdict.VIOLATED:
        assert {violation.invariant for violation in result.violations} == {"I7"}
        assert "another entry under this number" in result.violations[0].says
