"""The command `audit restore --apply` restores lost jobs and removes revived jobs after a loss.

The servers are real and really lose data. After each restore, `audit verify` proves the log, and the jobs that are due
can be run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from rq_core.connections.client import Client
from rq_core.model.job import profile, spec_of
from rq_core.model.table.machine import Priority
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.admin import Change
from sql_audit.proof.result import LogVerdict
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs
from tests.audit.restore.jobs import (
    ERROR,
    FULL,
    HOUR_MS,
    claim,
    complete,
    flush,
    give_back,
    job,
    lines,
    restored,
    run_all,
)
from tests.kit.agreement import assert_agree, drain, states
from tests.kit.fleet import QUEUE
from tests.kit.servers import RedisServer
from tests.kit.snapshots import lines_of
from tests.kit.wait import wait_until


def test_jobs_in_every_state_are_restored_after_a_flush(client: Client, database: Database) -> None:
    """Checks waiting, delayed, dead, failed and blocked jobs. Three other jobs cannot be restored."""
    client.run(client.calls.caps.set(QUEUE, [("tenant", "1", -1)]))
    client.run(
        client.calls.enqueue.many(
            [job("retried"), job("dies"), job("ran"), job("unwanted"), job("done")]
        )
    )
    held = claim(client, 5)
    failures = [("retried", "retry", HOUR_MS), ("dies", "final", 0)]
    records = [(i, held[i], verdict, delay, "final", ERROR) for i, verdict, delay in failures]
    client.run(claims.fail(QUEUE, "w-1", records))
    complete(client, {"done": held["done"]})
    client.run(client.calls.admin.cancel(QUEUE, ["unwanted"]))
    headed = job("first", priority=Priority.HIGH, headers_json='{"request-id":"01a2"}')
    timed = profile("task", timeout_ms=5_000)
    jobs = [job("plain")._replace(profile=timed), headed, job("later", delay_ms=HOUR_MS)]
    jobs += [job("due", delay_ms=1), job("edited", lane="2+tenant=wayne")]
    jobs += [job(f"acme-{n}", lane="2+tenant=acme") for n in range(3)]
    jobs += [job("digest-only", spec_max=0), job("too-long", args_json=f'{{"a":"{"x" * FULL}"}}')]
    client.run(client.calls.enqueue.many(jobs))
    change = Change(priority="critical", due=f"+{HOUR_MS}", expires=f"+{2 * HOUR_MS}")
    assert client.run(client.calls.admin.edit(QUEUE, ["edited"], change)) == {"edited": "edited"}
    edited = client.run(client.calls.reads.job("edited", [QUEUE]))
    specs = client.run(client.calls.reads.snapshot(QUEUE))["jobs"]
    drain(client, database)
    flush(client)
    drain(client, database)

    done = restore_jobs(client, database, QUEUE, by="ada")

    assert (done.restored, done.removed, done.left, done.alive) == (11, 0, {}, {})
    assert [(each.job_id, each.over) for each in done.over] == [
        ("unwanted", "a cancellation was requested")
    ]
    unknown = {each.job_id: each.unknown for each in done.unknown}
    assert unknown == dict.fromkeys(
        ("digest-only", "too-long"), "the log does not keep its arguments"
    )
    assert not done.complete
    assert_agree(client, database, LogVerdict.HOLDS)
    snapshot = client.run(client.calls.reads.snapshot(QUEUE))
    assert {i: spec_of(specs[i]) for i in snapshot["jobs"]} == snapshot["jobs"]
    found = states(database)
    assert {i for i, state in found.items() if state == "lost"} == {
        "unwanted", "digest-only", "too-long"
    }  # fmt: skip
    assert {found[i] for i in ("retried", "later", "edited")} == {"scheduled"}
    back = client.run(client.calls.reads.job("edited", [QUEUE]))
    assert edited is not None
    assert back is not None
    assert {**edited.fields, "since": "-"} == {**back.fields, "since": "-"}
    assert found["dies"] == "dead"
    assert "claim=1 failed=1" in lines_of(snapshot)["retried"]
    assert snapshot["scheduled"]["job|retried"] - snapshot["scheduled"]["job|later"] < 60_000

    again = restore_jobs(client, database, QUEUE, by="ada")

    assert (again.restored, again.removed, again.left) == (0, 0, {})
    assert len(again.unknown) == 2
    client.run(client.calls.caps.set(QUEUE, [("tenant", "1", -1)]))
    client.run(client.calls.admin.requeue(QUEUE, ["dies"]))
    order = ["first", "ran", "plain", "acme-0", "due", "dies", "acme-1", "acme-2"]
    assert run_all(client) == order
    result = assert_agree(client, database, LogVerdict.HOLDS)
    assert result.live == 3
    assert set(restored(database).values()) == {1}


def test_a_lost_scheduled_job_whose_due_time_has_passed_is_restored_as_ready(
    client: Client, database: Database
) -> None:
    client.run(client.calls.enqueue.many([job("due", delay_ms=200)]))
    drain(client, database)
    flush(client)
    drain(client, database)
    server = client.run(client.calls.delivery.ask([["TIME"]]))
    wait_until(
        lambda: (
            int(client.run(client.calls.delivery.ask([["TIME"]]))[0][0]) > int(server[0][0]) + 1
        ),
        "it is due",
    )

    restore_jobs(client, database, QUEUE, by="ada")

    assert lines(client)["due"].startswith("ready ")
    assert run_all(client) == ["due"]


def test_a_restored_job_can_be_lost_and_restored_again(client: Client, database: Database) -> None:
    client.run(client.calls.enqueue.many([job("a")]))
    for _ in range(3):
        drain(client, database)
        flush(client)
        drain(client, database)
        assert restore_jobs(client, database, QUEUE, by="ada").restored == 1
        assert_agree(client, database, LogVerdict.HOLDS)

    assert run_all(client) == ["a"]
    assert_agree(client, database, LogVerdict.HOLDS)


def test_restore_repairs_a_queue_after_redis_loaded_an_old_snapshot(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    server = start_redis()
    with Client(server.url) as client:
        client.run(client.calls.caps.set(QUEUE, [("tenant", "2", -1)]))
        before = ["done", "cancelled", "pruned", "again", "done-acme", "kept", "runs-again"]
        lanes = {"done-acme": "2+tenant=acme"}
        client.run(client.calls.enqueue.many([job(i, lane=lanes.get(i, "")) for i in before]))
        dead = claim(client, 7)
        record = ("pruned", dead.pop("pruned"), "final", 0, "final", ERROR)
        client.run(claims.fail(QUEUE, "w-1", [record]))
        give_back(client, dead)
        drain(client, database)
        with server.client() as control:
            control.save()
        client.run(
            client.calls.enqueue.many([job("unheard-of"), job("ran-on"), job("forgotten-and-done")])
        )
        held = claim(client, 20)
        ended = ("done", "again", "done-acme", "runs-again", "forgotten-and-done")
        complete(client, {i: held[i] for i in ended})
        client.run(client.calls.admin.prune(QUEUE, ["pruned"]))
        give_back(client, {"cancelled": held["cancelled"]})
        client.run(client.calls.admin.cancel(QUEUE, ["cancelled"]))
        drain(client, database)
        server.kill()
        server.start()
        # A worker that went on, a producer that wants one again, and a claim of what is back.
        assert complete(client, {"ran-on": held["ran-on"]}) == {"ran-on": "gone"}
        client.run(client.calls.admin.cancel(QUEUE, ["again"]))
        client.run(client.calls.enqueue.many([job("again")]))
        running = claim(client, 1)
        drain(client, database)

        done = restore_jobs(client, database, QUEUE, by="ada")

        assert running.keys() == done.left.keys() == {"done"}
        assert done.left == {"done": "running"}
        assert (done.restored, done.removed) == (1, 4)
        assert {each.job_id: each.over for each in done.over} == {
            "ran-on": "a worker completed it after the loss",
            "forgotten-and-done": "it had succeeded",
        }
        assert_agree(client, database, LogVerdict.HOLDS)
        assert lines(client).keys() == {"done", "again", "kept", "unheard-of"}
        complete(client, running)
        assert sorted(run_all(client)) == ["again", "kept", "unheard-of"]
        assert_agree(client, database, LogVerdict.HOLDS)
        done = restore_jobs(client, database, QUEUE, by="ada")

    assert (done.restored, done.removed, done.complete) == (0, 0, True)
    found = states(database)
    removed = {i for i, state in found.items() if state == "removed"}
    assert removed == {"cancelled", "pruned", "done-acme", "runs-again"}
    assert Counter(found.values())["succeeded"] == 4
