"""After a loss `audit restore --apply` puts back what Redis lost and takes out what it brought back: on real
servers that forget by real means, until `audit verify` says that all holds and workers have run everything."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from click.testing import Result

from rq_core import errors
from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.keys import queue_keys
from rq_core.model.machine import Priority
from rq_core.protocol import claims
from rq_core.protocol.admin import IDS_CHUNK
from sql_audit.errors import MirrorBehind
from sql_audit.mirror.source import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.result import Verdict
from sql_audit.store.database import Database
from sql_audit.upkeep import restore
from sql_audit.upkeep.restore import apply, survey
from tests.kit import auditlog, crew
from tests.kit.agreement import assert_agree, drain, states
from tests.kit.command import audit
from tests.kit.fleet import QUEUE
from tests.kit.secrets import SECRET
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until

FULL = 64 * 1024
HOUR_MS = 3_600_000
ERROR = '{"type":"ValueError","message":"no"}'


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url) as client:
        yield client


def job(job_id: str, **options: Any) -> NewJob:
    made = profile("task", options.pop("priority", Priority.NORMAL))
    args_json = options.pop("args_json", f'{{"of":"{job_id}"}}')
    return NewJob(job_id, QUEUE, made, args_json, **{"spec_max": FULL, **options})


def claim(client: Client, limit: int) -> dict[str, str]:
    """Claim jobs: their fences by id."""
    claimed = client.run(claims.claim(QUEUE, "w-1", limit))
    return {each.id: each.fence for each in claimed.jobs}


def complete(client: Client, held: dict[str, str]) -> dict[str, str]:
    return client.run(claims.complete(QUEUE, "w-1", list(held.items())))


def give_back(client: Client, held: dict[str, str]) -> None:
    records = [(i, fence, "stopping", "null", "", 0) for i, fence in held.items()]
    client.run(claims.rollback(QUEUE, "w-1", records))


def run_all(client: Client) -> list[str]:
    """Run everything that may be claimed to its end. Returns the ids in order."""
    ran: list[str] = []
    while held := claim(client, 100):
        ran += held
        assert complete(client, held) == {}
    return ran


def flush(client: Client) -> None:
    client.run(client.calls.delivery.ask([["FLUSHALL"]]))


def lines(client: Client) -> dict[str, str]:
    found: dict[str, str] = client.run(client.calls.reads.snapshot(QUEUE))["state"]
    return found


def restored(database: Database) -> Counter[str]:
    """How often each job was put back."""
    found = auditlog.rows(database, "SELECT job_id FROM job_event WHERE type = 'restored'")
    return Counter(row["job_id"] for row in found)


@contextmanager
def mirroring(url: str, database: Database) -> Iterator[None]:
    """A mirror at work meanwhile."""
    stop = threading.Event()

    def work() -> None:
        with Client(url) as client:
            mirror = Mirror(Outbox(client), database, QUEUE)
            while not stop.is_set():
                mirror.turn()
                stop.wait(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def invoke(database: Database, url: str, *options: str) -> Result:
    address = str(database.address.render_as_string(False))
    command = ["restore", "--audit", address, "--redis", url, "--by", "ada", *options]
    return audit(*command)


# Redis remembers nothing.


def test_after_a_flush_everything_is_there_again(client: Client, database: Database) -> None:
    """As it was: waiting, due later, dead, behind a cap, with its failures; and it runs to its end."""
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
    jobs = [job("plain"), job("first", priority=Priority.HIGH), job("later", delay_ms=HOUR_MS)]
    jobs += [job("due", delay_ms=1)]
    jobs += [job(f"acme-{n}", lane="2+tenant=acme") for n in range(3)]
    jobs += [job("digest-only", spec_max=0), job("too-long", args_json=f'{{"a":"{"x" * FULL}"}}')]
    client.run(client.calls.enqueue.many(jobs))
    specs = client.run(client.calls.reads.snapshot(QUEUE))["jobs"]
    drain(client, database)
    flush(client)
    drain(client, database)

    done = apply(client, database, QUEUE, by="ada")

    assert (done.restored, done.removed, done.left, done.alive) == (10, 0, {}, {})
    assert [(each.job_id, each.over) for each in done.over] == [
        ("unwanted", "somebody had asked to cancel it")
    ]
    unknown = {each.job_id: each.unknown for each in done.unknown}
    assert unknown == dict.fromkeys(("digest-only", "too-long"), "the log has no arguments of it")
    assert not done.complete
    assert_agree(client, database, Verdict.HOLDS)
    snapshot = client.run(client.calls.reads.snapshot(QUEUE))
    assert {i: specs[i] for i in snapshot["jobs"]} == snapshot["jobs"]
    found = states(database)
    assert {i for i, state in found.items() if state == "lost"} == {
        "unwanted", "digest-only", "too-long"
    }  # fmt: skip
    assert {found[i] for i in ("retried", "later")} == {"scheduled"}
    assert found["dies"] == "dead"
    assert "claim=1 failed=1" in snapshot["state"]["retried"]
    assert snapshot["scheduled"]["job|retried"] - snapshot["scheduled"]["job|later"] < 60_000

    again = apply(client, database, QUEUE, by="ada")

    assert (again.restored, again.removed, again.left) == (0, 0, {})
    assert len(again.unknown) == 2
    client.run(client.calls.caps.set(QUEUE, [("tenant", "1", -1)]))
    client.run(client.calls.admin.requeue(QUEUE, ["dies"]))
    order = ["first", "ran", "plain", "acme-0", "due", "dies", "acme-1", "acme-2"]
    assert run_all(client) == order
    result = assert_agree(client, database, Verdict.HOLDS)
    assert result.live == 2
    assert set(restored(database).values()) == {1}


def test_jobs_that_are_not_due_any_more_come_back_ready(client: Client, database: Database) -> None:
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

    apply(client, database, QUEUE, by="ada")

    assert lines(client)["due"].startswith("ready ")
    assert run_all(client) == ["due"]


def test_a_loss_after_a_restore_is_put_right_from_the_same_arguments(
    client: Client, database: Database
) -> None:
    client.run(client.calls.enqueue.many([job("a")]))
    for _ in range(3):
        drain(client, database)
        flush(client)
        drain(client, database)
        assert apply(client, database, QUEUE, by="ada").restored == 1
        assert_agree(client, database, Verdict.HOLDS)

    assert run_all(client) == ["a"]
    assert_agree(client, database, Verdict.HOLDS)


# Redis goes back.


def test_after_an_old_snapshot_the_lost_come_back_and_the_revived_leave(
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

        done = apply(client, database, QUEUE, by="ada")

        assert running.keys() == done.left.keys() == {"done"}
        assert done.left == {"done": "running"}
        assert (done.restored, done.removed) == (1, 4)
        assert {each.job_id: each.over for each in done.over} == {
            "ran-on": "a worker completed it all the same",
            "forgotten-and-done": "it had succeeded",
        }
        assert_agree(client, database, Verdict.HOLDS)
        assert lines(client).keys() == {"done", "again", "kept", "unheard-of"}
        complete(client, running)
        assert sorted(run_all(client)) == ["again", "kept", "unheard-of"]
        assert_agree(client, database, Verdict.HOLDS)
        done = apply(client, database, QUEUE, by="ada")

    assert (done.restored, done.removed, done.complete) == (0, 0, True)
    found = states(database)
    removed = {i for i, state in found.items() if state == "removed"}
    assert removed == {"cancelled", "pruned", "done-acme", "runs-again"}
    assert Counter(found.values())["succeeded"] == 4


# Somebody else was at it.


def test_a_job_whose_state_was_deleted_by_hand_is_told_to_be_gone_first(
    client: Client, database: Database
) -> None:
    """Redis' history did not break, so the log takes it for alive."""
    client.run(client.calls.enqueue.many([job("deleted", delay_ms=HOUR_MS), job("other")]))
    drain(client, database)
    keys = queue_keys(QUEUE)
    commands = [["HDEL", keys(name), "deleted"] for name in ("state", "jobs")]
    client.run(client.calls.delivery.ask([*commands, ["ZREM", keys("scheduled"), "job|deleted"]]))

    done = apply(client, database, QUEUE, by="ada")

    assert (done.restored, done.complete) == (1, True)
    assert_agree(client, database, Verdict.HOLDS)
    assert lines(client)["deleted"].startswith("scheduled ")


def test_arguments_that_are_not_those_of_the_digest_are_not_enqueued(
    client: Client, database: Database
) -> None:
    call = client.calls.enqueue.chunk(QUEUE, [job("forged")])
    [(*others, spec)] = call.each
    client.run(replace(call, each=[(*others, spec.replace("forged", "FORGED"))]))
    drain(client, database)
    flush(client)
    drain(client, database)

    done = apply(client, database, QUEUE, by="ada")

    assert done.restored == 0
    assert [each.unknown for each in done.unknown] == [
        "the arguments in the log are not those that it was enqueued with"
    ]
    assert lines(client) == {}


def test_it_waits_for_the_mirror_and_says_so_in_the_end(client: Client, database: Database) -> None:
    """A job that ended since looks lost to whoever does not wait."""
    client.run(client.calls.enqueue.many([job("a"), job("b")]))
    drain(client, database)
    assert run_all(client) == ["a", "b"]

    with pytest.raises(MirrorBehind, match=r"rq-core audit run"):
        apply(client, database, QUEUE, by="ada", wait_s=0)

    assert lines(client) == {}
    drain(client, database)
    assert apply(client, database, QUEUE, by="ada").restored == 0
    assert_agree(client, database, Verdict.HOLDS)


def test_an_empty_redis_is_noticed_by_the_restore_itself(
    client: Client, database: Database, redis_url: str
) -> None:
    """Nobody has come back yet; the mirror is at work."""
    client.run(client.calls.enqueue.many([job("a")]))
    drain(client, database)
    flush(client)

    with mirroring(redis_url, database), Client(redis_url) as other:
        done = apply(other, database, QUEUE, by="ada")

    assert done.restored == 1
    assert_agree(client, database, Verdict.HOLDS)


def test_two_at_once_put_nothing_back_twice(
    client: Client, database: Database, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second saw what was lost before the first put it back, and workers have run it since."""
    names = [f"j-{n:04}" for n in range(2 * IDS_CHUNK)]
    client.run(client.calls.enqueue.many(job(name) for name in names))
    drain(client, database)
    flush(client)
    drain(client, database)
    ran: list[str] = []

    def meanwhile(done: int, of: int) -> None:
        if done < of and not ran:
            with Client(redis_url) as other:
                assert apply(other, database, QUEUE, by="eve").restored == len(names) - done
            ran.extend(run_all(client))

    # What the log says of the second chunk was read before: the worst case.
    read = list(restore._lost(database, QUEUE, names))
    monkeypatch.setattr(
        restore,
        "_lost",
        lambda _d, _q, ids: (each for each in read if each[0].job_id in set(ids)),
    )
    with mirroring(redis_url, database):
        done = apply(client, database, QUEUE, by="ada", on_progress=meanwhile)
    assert done.restored == IDS_CHUNK
    assert sorted(ran) == names
    assert run_all(client) == []
    assert_agree(client, database, Verdict.HOLDS)
    assert set(restored(database).values()) == {1}


def test_a_producer_that_enqueued_it_again_is_left_alone(
    client: Client, database: Database
) -> None:
    client.run(client.calls.enqueue.many([job("a"), job("b")]))
    drain(client, database)
    flush(client)
    client.run(client.calls.enqueue.many([job("a", args_json='{"n":2}')]))
    drain(client, database)

    done = apply(client, database, QUEUE, by="ada")

    assert (done.restored, done.complete) == (1, True)
    assert client.run(client.calls.reads.snapshot(QUEUE))["jobs"]["a"].endswith('"args":{"n":2}}')
    assert_agree(client, database, Verdict.HOLDS)


def test_it_waits_while_the_backlog_is_full(
    client: Client, database: Database, redis_url: str
) -> None:
    """Each call fills it, and the mirror empties it."""
    names = [f"j-{n:04}" for n in range(2 * IDS_CHUNK)]
    client.run(client.calls.enqueue.many(job(name) for name in names))
    drain(client, database)
    flush(client)
    drain(client, database)
    client.run(client.calls.admin.configure(QUEUE, {"backlog_max_jobs": 1}))
    drain(client, database)

    with pytest.raises(errors.AuditBacklogFull):
        apply(client, database, QUEUE, by="ada", wait_s=0)
    assert len(lines(client)) == IDS_CHUNK
    with mirroring(redis_url, database):
        assert apply(client, database, QUEUE, by="ada").restored == IDS_CHUNK

    # At twice the bound nothing is claimed.
    client.run(client.calls.admin.configure(QUEUE, {"backlog_max_jobs": 1_000_000}))
    assert run_all(client) == names
    assert_agree(client, database, Verdict.HOLDS)


# It is killed half-way.


@pytest.mark.parametrize("calls", [1, 2])
def test_a_restore_that_was_killed_is_run_again(
    client: Client, database: Database, redis_url: str, calls: int
) -> None:
    """Everything exactly once, whatever was done and not told."""
    names = [f"j-{n:04}" for n in range(2 * IDS_CHUNK + 50)]
    client.run(client.calls.enqueue.many(job(name) for name in names))
    drain(client, database)
    flush(client)
    drain(client, database)
    address = str(database.address.render_as_string(False))
    command = [sys.executable, "-m", "tests.kit.restore_child", redis_url, address, QUEUE]

    killed = subprocess.run([*command, str(calls)], check=False, timeout=60)

    assert killed.returncode == -signal.SIGKILL
    assert len(lines(client)) == calls * IDS_CHUNK
    ran = run_all(client)
    with mirroring(redis_url, database):
        done = apply(client, database, QUEUE, by="ada")
        assert done.restored == len(names) - calls * IDS_CHUNK
        assert apply(client, database, QUEUE, by="ada").restored == 0
    assert ran + run_all(client) == names
    assert_agree(client, database, Verdict.HOLDS)
    assert restored(database) == dict.fromkeys(names, 1)


# The command.


def test_the_command_says_what_it_did_and_what_is_left(
    client: Client, database: Database, redis_url: str
) -> None:
    client.run(client.calls.enqueue.many([job("full"), job("digest", spec_max=0)]))
    drain(client, database)
    flush(client)
    drain(client, database)

    listed = invoke(database, redis_url)
    applied = invoke(database, redis_url, "--apply")
    drain(client, database)
    again = invoke(database, redis_url, "--apply", "--json")

    assert listed.exit_code == 0
    assert "q: 2 jobs lost, 0 revived" in listed.output
    refusal = "lost: digest  task  was ready; cannot be put back: the log has no arguments of it"
    assert refusal in listed.output
    assert "lost: full  task  was ready\n" in listed.output
    assert applied.exit_code == 2
    assert "q: 1 jobs restored, 0 removed" in applied.output
    assert refusal in applied.output
    assert 'App(audit_payload="full")' in applied.output
    assert again.exit_code == 2
    (of_queue,) = json.loads(again.stdout)["queues"].values()
    assert (of_queue["restored"], of_queue["complete"]) == (0, False)
    assert [each["job_id"] for each in of_queue["unknown"]] == ["digest"]
    told = auditlog.one(database, "SELECT worker, detail FROM job_event WHERE type = 'restored'")
    assert (told["worker"], json.loads(told["detail"])["why"]) == ("ada", "audit restore")


def test_the_command_ends_with_0_when_nothing_is_left(
    client: Client, database: Database, redis_url: str
) -> None:
    client.run(client.calls.enqueue.many([job("full")]))
    drain(client, database)
    flush(client)
    drain(client, database)

    assert invoke(database, redis_url, "--apply", "--queue", QUEUE).exit_code == 0
    drain(client, database)
    assert invoke(database, redis_url, "--apply").exit_code == 0
    assert survey(client, database, QUEUE).lost == []


def test_the_command_ends_with_1_when_the_mirror_is_behind(
    client: Client, database: Database, redis_url: str
) -> None:
    client.run(client.calls.enqueue.many([job("full")]))
    drain(client, database)
    client.run(client.calls.enqueue.many([job("new")]))

    shown = invoke(database, redis_url, "--apply", "--wait", "0")

    assert shown.exit_code == 1
    assert "rq-core: queue q: Redis has entries up to" in shown.output


# An app, and its workers.


def test_a_worker_runs_what_came_back(redis_url: str, database: Database, tmp_path: Any) -> None:
    """With the arguments that its producer gave: no redactor touches them."""
    seen = crew.Witness(tmp_path / "witness.jsonl")
    with App(redis_url, redact="tests.kit.secrets:redact", audit_payload="full") as app:
        app.queue("digest", audit_payload="digest")
        mirror = Mirror(Outbox(app.client), database, "crew")
        mirror.attach()
        ran = app.enqueue("crew", "function", {"n": 7})
        later = app.enqueue("crew", "failing", {"message": SECRET}, delay=3600)
        other = app.enqueue("digest", "function", {"n": 8})
        auditlog.drain(mirror)
        auditlog.drain(Mirror(Outbox(app.client), database, "digest"))
        flush(app.client)
        auditlog.drain(mirror)

        done = apply(app.client, database, "crew", by="ada")

        assert done.restored == 2
        specs = app.client.run(app.client.calls.reads.snapshot("crew"))["jobs"]
        assert json.loads(specs[later.id])["args"] == {"message": SECRET}
        with crew.worker_process(redis_url, seen) as process:
            wait_until(lambda: ran.state() == "gone", "it has run", timeout=30)
            process.terminate()
            assert process.wait(60) == 0
        auditlog.drain(mirror)
        auditlog.drain(Mirror(Outbox(app.client), database, "digest"))
        lost = survey(app.client, database, "digest").lost

    assert [(line["job"], line["n"]) for line in seen.lines("function")] == [(ran.id, 7)]
    assert auditlog.one(database, "SELECT state FROM job WHERE job_id = :i", i=ran.id) == {
        "state": "succeeded"
    }
    assert [(each.job_id, each.unknown) for each in lost] == [
        (other.id, "the log has no arguments of it")
    ]


@pytest.mark.parametrize("said", ["all", "", None, True])
def test_other_payloads_are_refused(said: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="audit_payload"):
        App(audit_payload=said)
