"""A prune after a loss of Redis. The remaining log can be proven, and answers of queries mention the pruned jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
import redis

from rq_core.connections.client import Client
from rq_core.protocol.calls import claims
from sql_audit import times
from sql_audit.errors import HistoryUnknown
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.queries import history, moments, waits
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.plan import Rules, plan
from sql_audit.upkeep.prune import PruneResult, prune_logs
from tests.audit.epochs.forgetting import START_MS, enqueue, orphaned, timed_client
from tests.kit import auditlog
from tests.kit.agreement import assert_agree, states
from tests.kit.clock import Clock
from tests.kit.command import audit
from tests.kit.fleet import QUEUE, Fleet
from tests.kit.servers import RedisServer


class Seasons:
    """A queue on the test's clock with a mirror that writes small batches, and a server that can lose data."""

    def __init__(self, server: RedisServer, database: Database, seed: int) -> None:
        self.server = server
        self.database = database
        self.client: Client = timed_client(server)
        self.control: redis.Redis = server.client()
        self.clock = Clock(self.control, START_MS)
        self.fleet = Fleet(self.client, seed)

    def close(self) -> None:
        self.client.close()
        self.control.close()

    def mirror(self) -> None:
        limits = BatchLimits(events=15)
        auditlog.drain(Mirror(Outbox(self.client), self.database, QUEUE, limits=limits))

    def run(self, steps: int) -> None:
        for step in range(steps):
            self.fleet.run(1)
            self.clock.advance(100)
            if step % 10 == 9:
                self.mirror()
        self.mirror()

    def go_back(self) -> None:
        """Restart the server with its last snapshot, while the clock continues."""
        self.server.kill()
        self.server.start()
        self.clock.advance(1_000)

    def flush(self) -> None:
        self.control.flushall()
        self.clock.advance(1_000)
        self.fleet.held.clear()

    def prune(self) -> PruneResult:
        """Prune all finished jobs of a proven log."""
        cuts = plan(self.database, Rules(0), now_ms=self.clock.now_ms)
        (done,) = prune_logs(self.database, cuts, by="ada", now_ms=self.clock.now_ms)
        return done


@pytest.fixture
def seasons(start_redis: Callable[..., RedisServer], database: Database) -> Iterator[Seasons]:
    seasons = Seasons(start_redis(), database, 2)
    yield seasons
    seasons.close()


def test_a_log_with_orphans_and_losses_can_be_pruned_and_proven(
    seasons: Seasons, database: Database
) -> None:
    """Checks a prune after the first loss, and a prune after the second. Both times the remaining log agrees with
    Redis."""
    seasons.run(60)
    seasons.control.save()
    seasons.run(40)
    enqueue(seasons.client, "forgotten")
    seasons.mirror()
    seasons.go_back()
    seasons.run(60)
    before = orphaned(database)
    assert states(database)["forgotten"] == "lost"

    first = seasons.prune()

    result = assert_agree(seasons.client, database, LogVerdict.HOLDS, pruned=True)
    left = orphaned(database)
    assert first.jobs > 10
    assert len(left) == result.orphans < len(before)
    assert "forgotten" not in states(database)
    (loss,) = result.losses
    assert f"{len(left)} events up to" in loss.says
    assert loss.says.endswith(" (of what the prune left)")
    # What orphans are left belong to jobs that are alive.
    assert {row["job_id"] for row in left if row["job_id"]} <= states(database).keys()

    seasons.run(20)
    alive = len(seasons.client.run(seasons.client.calls.reads.snapshot(QUEUE))["jobs"])
    seasons.flush()
    seasons.run(60)
    assert list(states(database).values()).count("lost") == alive > 0

    flushed = verify(database).queues[QUEUE].losses[-1]
    assert flushed.jobs == alive
    assert "prune" not in flushed.says, "it lies behind the cut"

    second = seasons.prune()

    result = assert_agree(seasons.client, database, LogVerdict.HOLDS, pruned=True)
    flushed = result.losses[-1]
    assert flushed.jobs < alive
    assert flushed.says.endswith(" (of what the prune left)")
    assert second.jobs >= alive
    assert "lost" not in states(database).values()
    seasons.run(30)
    assert_agree(seasons.client, database, LogVerdict.HOLDS, pruned=True)


@pytest.mark.slow
def test_the_verdict_is_unknown_after_redis_loads_a_snapshot_with_jobs_that_were_pruned_from_sql(
    seasons: Seasons, database: Database
) -> None:
    """Checks a Redis that brings back pruned jobs. SQL lacks their events, and has only a baseline with these jobs."""
    seasons.run(60)
    seasons.control.save()
    seasons.run(60)
    done = seasons.prune()
    assert done.jobs > 0
    seasons.go_back()
    seasons.run(60)

    result = assert_agree(seasons.client, database, LogVerdict.UNKNOWN, pruned=True)

    assert any("a baseline says what came of them" in note.says for note in result.notes)


def test_queries_state_that_jobs_were_pruned(seasons: Seasons, database: Database) -> None:
    """Checks an answer without events. The answer says that events may have been pruned."""
    enqueue(seasons.client, "done", "waits")
    (claim, _) = seasons.client.run(claims.claim(QUEUE, "w-1", 2)).jobs  # both run
    held = [(claim.id, claim.fence)]
    seasons.clock.advance(100)
    then = seasons.clock.now_ms
    enqueue(seasons.client, "behind")
    seasons.clock.advance(100)
    seasons.client.run(claims.complete(QUEUE, "w-1", held))
    seasons.mirror()
    seasons.clock.advance(1_000)
    seasons.client.run(claims.claim(QUEUE, "w-2", 1))
    enqueue(seasons.client, "later")
    seasons.mirror()
    url = database.address.render_as_string(hide_password=False)

    def said(*arguments: str, status: int = 0) -> str:
        result = audit(*arguments, "--audit", url)
        assert result.exit_code == status, result.output
        return result.output

    assert "pruned" not in said("at", str(then), "--queue", QUEUE) + said("history", "done")
    assert "pruned" not in said("history", "never-was", status=2)

    seasons.prune()

    told = (
        f"jobs of queue {QUEUE} that had ended by {times.readable(then + 100)} may have been pruned"
    )
    with pytest.raises(HistoryUnknown, match="may have been pruned"):
        history.history(database.readers, "done")
    with pytest.raises(HistoryUnknown, match="may have been pruned"):
        waits.why(database.readers, "done")
    for question in (["history", "done"], ["why", "done"]):
        assert told in said(*question, status=2)
        assert told in said(*question, "--queue", QUEUE, status=2)
    moment = moments.at(database.readers, QUEUE, then)
    assert [each.job_id for each in moment.running] == ["waits"]
    assert moment.pruned is not None
    assert f"some jobs may be missing: {told}" in said("at", str(then), "--queue", QUEUE)
    document = json.loads(said("at", str(then), "--queue", QUEUE, "--json"))
    assert document["queues"][QUEUE]["pruned"]["by"] == "ada"
    # Who waited then may have waited for somebody who has left.
    assert f"some waits may be missing: {told}" in said("why", "behind")
    # What is after the cut is told whole.
    assert "pruned" not in said("at", str(seasons.clock.now_ms), "--queue", QUEUE)
    assert "pruned" not in said("why", "later") + said("history", "waits")


def test_a_history_with_only_a_refused_settlement_states_that_other_events_were_pruned(
    seasons: Seasons, database: Database
) -> None:
    enqueue(seasons.client, "done", "other")
    made = seasons.client.run(claims.claim(QUEUE, "w-1", 1)).jobs
    held = [(claim.id, claim.fence) for claim in made]
    seasons.client.run(claims.complete(QUEUE, "w-1", held))
    seasons.mirror()
    seasons.clock.advance(1_000)
    seasons.client.run(claims.complete(QUEUE, "w-1", held))
    seasons.mirror()
    seasons.prune()
    url = database.address.render_as_string(hide_password=False)

    shown = audit("history", "done", "--audit", url)

    assert "settlement_refused" in shown.output
    assert "some events may be missing" in shown.output
    events = history.history(database.readers, "done")
    assert [event.type for event in events] == ["settlement_refused"]
    assert_agree(seasons.client, database, LogVerdict.HOLDS, pruned=True)
