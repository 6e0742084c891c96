"""Redis forgets, by real means, and the log says what: SQL's surviving events are Redis' state again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.protocol import claims
from rq_core.protocol.delivery import Delivery
from rq_core.protocol.operations import Operations
from sql_audit.mirror.source import Outbox
from sql_audit.mirror.turn import STEPS, Mirror
from sql_audit.proof.result import Verdict
from sql_audit.queries import history as queries
from sql_audit.store.database import Database
from sql_audit.upkeep.restore import Survey, survey
from tests.kit import auditlog
from tests.kit.agreement import assert_agree, drain, states
from tests.kit.clock import Clock, timed
from tests.kit.command import audit
from tests.kit.fleet import QUEUE, Fleet
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until

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


# Redis remembers nothing.


@pytest.mark.parametrize("how", ["flushed", "restarted"])
def test_when_redis_remembers_nothing_what_lived_is_lost(
    start_redis: Callable[..., RedisServer], database: Database, how: str
) -> None:
    server = start_redis()
    with Client(server.url) as client:
        fleet = Fleet(client, 1)
        fleet.run(60)
        enqueue(client, "waiting", "ran")
        drain(client, database)
        alive = set(client.run(client.calls.reads.snapshot(QUEUE))["state"])
        if how == "flushed":
            with server.client() as control:
                control.flushall()
        else:
            server.kill()
            server.start()
        fleet.held.clear()
        enqueue(client, "ran")
        fleet.run(60)

        result = assert_agree(client, database, Verdict.HOLDS)

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


def test_a_mirror_finds_out_that_redis_is_empty_before_anybody_comes_back(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    server = start_redis()
    with Client(server.url) as client:
        enqueue(client, "a", "b")
        drain(client, database)
        server.kill()
        server.start()

        result = assert_agree(client, database, Verdict.HOLDS)

        assert client.run(client.calls.reads.counts(QUEUE)).audit
    assert states(database) == {"a": "lost", "b": "lost"}
    assert [loss.jobs for loss in result.losses] == [2]


def test_an_empty_server_whose_clock_is_behind_is_told_too(
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

        result = assert_agree(client, database, Verdict.UNKNOWN)

    assert states(database) == {"lost": "lost", "again": "ready", "new": "ready"}
    assert orphaned(database) == []
    assert [loss.jobs for loss in result.losses] == [2]
    assert len(auditlog.rows(database, "SELECT 1 FROM quarantine WHERE kind = 'conflict'")) == 2


# Redis goes back.


def test_a_restart_from_an_old_snapshot_orphans_what_came_after_it(
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

        result = assert_agree(client, database, Verdict.HOLDS)

    forgotten = orphaned(database)
    assert len(forgotten) == result.orphans > 0
    assert len(auditlog.events(database, QUEUE)) > before
    assert min((row["epoch"], row["seq"]) for row in forgotten) == _after(last)
    assert states(database)["forgotten"] == "lost"
    loss = next(loss for loss in result.losses if loss.orphaned)
    assert last in loss.says
    history = queries.history(database.readers, "forgotten")
    assert (history[0].type, history[0].orphaned) == ("enqueued", True)


def test_a_snapshot_from_before_the_mirror_came_orphans_the_whole_log(
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

        result = assert_agree(client, database, Verdict.HOLDS)

    assert states(database) == {"a": "ready", "b": "ready", "c": "lost"}
    assert result.orphans == before


def _after(entry_id: str) -> tuple[int, int]:
    epoch, seq = entry_id.split("-")
    return int(epoch), int(seq) + 1


def tail_of(server: RedisServer) -> Path:
    """The file that the server appends to."""
    return max((server.directory / "appendonlydir").glob("*.incr.aof"))


@pytest.mark.parametrize("lost", ["1 byte", "300 bytes", "5000 bytes", "half a script"])
def test_a_log_without_its_tail_orphans_exactly_what_it_lacks(
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

        result = assert_agree(client, database, Verdict.HOLDS)

    assert told
    beginning = auditlog.rows(
        database, "SELECT epoch, detail FROM job_event WHERE type = 'epoch_started'"
    )
    last = json.loads(beginning[-1]["detail"])["last"]
    forgotten = {(row["epoch"], row["seq"]) for row in orphaned(database)}
    assert forgotten == {at for at in ours if at >= _after(last)}
    assert result.losses


@pytest.mark.parametrize("goes_on", ["the same mirror", "another"])
def test_a_mirror_that_redis_forgot_is_made_known_again_though_that_failed_once(
    start_redis: Callable[..., RedisServer], database: Database, goes_on: str
) -> None:
    """Redis goes back to before the mirror came, and away again between the commit of its new epoch and the call that
    tells it who mirrors the queue."""
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
        assert_agree(client, database, Verdict.HOLDS)
    assert states(database) == {"a": "ready", "b": "ready"}


def test_a_loss_is_reported_still_when_the_epoch_that_told_of_it_is_forgotten(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    """Redis goes back twice, the second time to before it noticed the first."""
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
        result = assert_agree(client, database, Verdict.HOLDS)

    assert states(database) == {"kept": "ready", "seen": "lost", "last": "ready"}
    assert [str(loss.after) for loss in result.losses if loss.at.epoch == began] == [known]
    assert f"what followed {known}, if anything, is lost" in result.losses[0].says


# Another server takes over.


class Pair:
    """Two servers, the second a replica of the first."""

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


def test_a_promoted_replica_that_lagged_is_written_to_before_the_mirror_notices(
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

        result = assert_agree(new, database, Verdict.HOLDS)
        enqueue(new, "forgotten")
        assert_agree(new, database, Verdict.HOLDS)

    assert result.orphans == len(orphaned(database)) > 0
    found = states(database)
    assert found["forgotten"] == "ready"
    history = queries.history(database.readers, "forgotten")
    assert [event.orphaned for event in history if event.type == "enqueued"] == [True, False]


def test_a_server_that_comes_back_with_what_it_knew_revives_orphans(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    """A, then B that lagged, then A again, which never heard of B."""
    pair = Pair(start_redis)
    with Client(pair.first.url) as old, Client(pair.second.url) as new:
        enqueue(old, "before")
        drain(old, database)
        pair.follow(pair.second, pair.first)
        pair.promote(pair.second)
        enqueue(old, "of-a")
        drain(old, database)
        enqueue(new, "of-b")
        assert_agree(new, database, Verdict.HOLDS)
        assert states(database) == {"before": "ready", "of-a": "lost", "of-b": "ready"}
        enqueue(old, "never-mirrored")

        result = assert_agree(old, database, Verdict.UNKNOWN)

        assert states(database) == {
            "before": "ready", "of-a": "ready", "of-b": "lost", "never-mirrored": "ready",
        }  # fmt: skip
    assert [row["job_id"] for row in orphaned(database) if row["job_id"]] == ["of-b"]
    kept = auditlog.rows(database, "SELECT kind FROM quarantine")
    assert kept
    assert any("in quarantine" in note.says for note in result.notes)


def test_roles_that_are_swapped_and_swapped_back_are_noticed_on_live_connections(
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

        result = assert_agree(a, database, Verdict.HOLDS)

    assert states(database) == {"one": "ready", "two": "lost", "three": "ready", "four": "ready"}
    assert result.orphans == 1


@pytest.mark.parametrize("who", ["the mirror", "a producer", "a producer at the same moment"])
def test_a_promoted_server_whose_clock_is_behind_begins_an_epoch_beyond_what_sql_has(
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
        of_first.execute_command("DEBUG", "CHANGE-REPL-ID")
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
            "the mirror": Verdict.HOLDS,
            "a producer": Verdict.UNKNOWN,
            "a producer at the same moment": Verdict.VIOLATED,
        }[who]
        result = assert_agree(new, database, verdict)

        assert new.run(new.calls.reads.counts(QUEUE)).epoch > epoch
    live = {"afterwards": "ready"} if who != "the mirror" else {}
    assert states(database) == {"kept": "ready", "forgotten": "lost", **live}
    assert result.orphans > 0
    if who != "the mirror":
        kept = auditlog.rows(database, "SELECT raw FROM quarantine")
        assert kept
    if verdict is Verdict.VIOLATED:
        assert {violation.invariant for violation in result.violations} == {"I7"}
        assert "another entry under this number" in result.violations[0].says


# What is left to be done.


def test_restore_lists_what_was_lost_and_what_will_run_again(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    server = start_redis()
    with Client(server.url) as client:
        enqueue(client, "done-before", "waits")
        with server.client() as control:
            control.save()
        enqueue(client, "unheard-of", "done-and-forgotten", "runs")
        drain(client, database)
        (claimed,) = {c.fence for c in client.run(claims.claim(QUEUE, "w-1", 5)).jobs}
        done = [(job_id, claimed) for job_id in ("done-before", "done-and-forgotten")]
        client.run(claims.complete(QUEUE, "w-1", done))
        drain(client, database)
        assert survey(client, database, QUEUE) == Survey()
        server.kill()
        server.start()
        client.run(claims.complete(QUEUE, "w-1", [("runs", claimed)]))
        drain(client, database)

        found = survey(client, database, QUEUE)
        command = ["restore", "--audit", str(database.address.render_as_string(False))]
        shown = audit(*command, "--redis", server.url)

    assert {job.job_id: (job.was, job.finished, job.ran_on) for job in found.lost} == {
        "unheard-of": ("running", None, False),
        "done-and-forgotten": ("succeeded", "succeeded", False),
        "runs": ("running", None, True),
    }
    assert [(job.job_id, job.finished, job.state) for job in found.revived] == [
        ("done-before", "succeeded", "ready")
    ]
    assert shown.exit_code == 0
    assert "q: 3 jobs lost, 1 revived" in shown.output
    assert "revived: done-before  ready, succeeded at" in shown.output


# The mirror dies while it finds out.


class Stopped(Exception):
    """The mirror stopped here."""


@pytest.mark.parametrize("step", STEPS)
def test_a_mirror_that_dies_over_a_loss_notes_it_once(
    start_redis: Callable[..., RedisServer], database: Database, step: str
) -> None:
    server = start_redis()
    with Client(server.url) as client:
        enqueue(client, "kept", "claimed")
        drain(client, database)
        with server.client() as control:
            control.save()
        client.run(claims.claim(QUEUE, "w-1", 1))
        enqueue(client, "forgotten")
        drain(client, database)
        server.kill()
        server.start()
        enqueue(client, "afterwards")

        def stop(done: str) -> None:
            if done == step:
                raise Stopped

        with pytest.raises(Stopped):
            auditlog.drain(Mirror(Outbox(client), database, QUEUE, on_step=stop))
        result = assert_agree(client, database, Verdict.HOLDS)

    assert result.orphans == 2
    assert len(auditlog.rows(database, "SELECT 1 FROM mirror_loss")) == 1
    expected = {"kept": "ready", "claimed": "ready", "forgotten": "lost", "afterwards": "ready"}
    assert states(database) == expected
    assert auditlog.rows(database, "SELECT 1 FROM job_attempt") == []


# The audit trail is switched off and on.


@pytest.mark.parametrize("trimmed", [False, True])
def test_an_audit_trail_that_was_off_goes_on_from_a_baseline(
    start_redis: Callable[..., RedisServer], database: Database, *, trimmed: bool
) -> None:
    server = start_redis()
    with Client(server.url) as client:
        fleet = Fleet(client, 5)
        fleet.run(60)
        enqueue(client, "ended-meanwhile")
        drain(client, database)
        client.run(client.calls.audit.detach(QUEUE, queries.audit_id(database)))
        client.run(client.calls.admin.cancel(QUEUE, ["ended-meanwhile"]))
        fleet.run(40)
        if trimmed:
            # As the ring does after enough events.
            with server.client() as control:
                control.xtrim(f"rqc:{{{QUEUE}}}:outbox", maxlen=3, approximate=False)

        result = assert_agree(client, database, Verdict.UNKNOWN if trimmed else Verdict.HOLDS)

    assert states(database)["ended-meanwhile"] == ("gone" if trimmed else "cancelled")
    assert result.orphans == 0
