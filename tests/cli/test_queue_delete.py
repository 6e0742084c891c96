"""`rq-core queue delete`: what it refuses, which keys stay, and how a deleted queue is created again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.admin import DELETED, WAITS
from rq_core.protocol.reads import worker_registry
from sql_audit.mirror.redis_access import open_source
from sql_audit.mirror.service import run_mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.cli.conftest import CommandLine
from tests.kit import auditlog
from tests.kit.schemas import lay_schema
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until

KEYS = queue_keys("mail")


def enqueue(client: Client, *ids: str) -> None:
    client.run(client.calls.enqueue.many([NewJob(i, "mail", profile("send"), "{}") for i in ids]))


def empty_queue(client: Client) -> None:
    """Make a queue with a cap, whose only job has ended."""
    client.run(client.calls.caps.change("mail", "queue", 3))
    enqueue(client, "a")
    (held,) = client.run(claims.claim("mail", "w-1", 1)).jobs
    client.run(claims.complete("mail", "w-1", [(held.id, held.fence)]))


def left(valkey: RedisServer) -> list[str]:
    with valkey.client(decode_responses=True) as control:
        return sorted(control.keys("*"))


def test_the_delete_command_removes_all_keys_of_an_empty_queue_and_its_name(
    cli: CommandLine, client: Client, valkey: RedisServer
) -> None:
    empty_queue(client)

    assert cli.json("queue", "delete", "mail", "--reason", "moved") == {
        "queue": "mail",
        "outcome": "deleted",
        "jobs_removed": 0,
    }

    assert left(valkey) == []
    assert "there is no queue 'mail'" in cli.line(2, "queue", "delete", "mail")


def test_an_enqueue_into_a_deleted_queue_creates_the_queue_in_a_later_epoch(
    cli: CommandLine, client: Client
) -> None:
    empty_queue(client)
    before = client.run(client.calls.reads.counts("mail"))
    cli.ok("queue", "delete", "mail")

    enqueue(client, "b")

    after = client.run(client.calls.reads.counts("mail"))
    assert after.epoch > before.epoch
    assert (before.cap, after.cap) == (3, None)
    assert client.run(client.calls.reads.queues()) == ["mail"]


@pytest.mark.parametrize("state", ["ready", "scheduled", "dead"])
def test_the_delete_command_refuses_a_queue_with_jobs_unless_forced_with_a_reason(
    cli: CommandLine, client: Client, kill: Callable[..., None], valkey: RedisServer, state: str
) -> None:
    if state == "dead":
        kill("mail", "a")
    else:
        delay = 60_000 if state == "scheduled" else 0
        job = NewJob("a", "mail", profile("send"), "{}", delay_ms=delay)
        client.run(client.calls.enqueue.many([job]))

    said = cli.line(1, "queue", "delete", "mail")
    assert "jobs in it: 1;" in said
    assert "--force --reason" in said
    assert "needs --reason" in cli.line(2, "queue", "delete", "mail", "--force")
    assert client.run(client.calls.reads.job("a")) is not None

    cli.ok("queue", "delete", "mail", "--force", "--reason", "gone")

    assert left(valkey) == []


def test_the_delete_command_refuses_a_queue_with_a_running_job_even_if_forced(
    cli: CommandLine, client: Client
) -> None:
    enqueue(client, "a", "b")
    (held,) = client.run(claims.claim("mail", "w-1", 1)).jobs

    for more in ([], ["--force", "--reason", "gone"]):
        assert "workers run 1 of them" in cli.line(1, "queue", "delete", "mail", *more)

    assert client.run(client.calls.reads.job("b")) is not None
    assert client.run(claims.complete("mail", "w-1", [(held.id, held.fence)])) == {}


def test_the_delete_command_refuses_a_queue_that_live_workers_serve_unless_forced(
    cli: CommandLine, client: Client
) -> None:
    empty_queue(client)
    says = worker_registry.Presence("host", 1, "1", "code", ("mail",), 4, 0, 0)
    client.run(worker_registry.announce(client.prefix, "w-1", says, ["mail"], ()))

    assert "1 worker works for mail" in cli.line(1, "queue", "delete", "mail")

    cli.ok("queue", "delete", "mail", "--force", "--reason", "gone")


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    made = Database(sqlite_url)
    lay_schema(made)
    yield made
    made.close()


def mirror(url: str, database: Database) -> None:
    source = open_source(url, "rqc")
    try:
        run_mirror(source, database.url, stop=threading.Event(), once=True)
    finally:
        source.close()


def test_a_queue_is_deleted_only_after_its_mirror_has_every_event(
    cli: CommandLine, client: Client, valkey_url: str, database: Database
) -> None:
    empty_queue(client)
    enqueue(client, "waits")
    mirror(valkey_url, database)
    force = ("--force", "--reason", "moved", "--by", "ada")

    said = cli.line(1, "queue", "delete", "mail", *force, "--wait", "0")
    assert "the mirror has not copied" in said
    assert client.run(client.calls.reads.counts("mail")).epoch > 0
    mirror(valkey_url, database)
    cli.ok("queue", "delete", "mail", *force, "--wait", "0")
    assert verify(database).verdict is LogVerdict.HOLDS

    # And another life of it.
    enqueue(client, "b")
    mirror(valkey_url, database)

    result = verify(database)
    assert (result.verdict, result.violations) == (LogVerdict.HOLDS, [])
    assert result.queues["mail"].losses == []
    assert compare(client, database, "mail") == ([], [])
    rows = auditlog.rows(
        database, "SELECT worker, detail FROM job_event WHERE type = 'queue_deleted'"
    )
    assert [(row["worker"], row["detail"]) for row in rows] == [("ada", '{"why":"moved"}')]
    assert auditlog.rows(database, "SELECT * FROM mirror_epoch WHERE kind <> 'started'") == []
    assert auditlog.rows(database, "SELECT * FROM mirror_loss") == []
    assert [e["state"] for e in auditlog.rows(database, "SELECT state FROM job ORDER BY job_id")] == [
        "succeeded", "ready", "cancelled",
    ]  # fmt: skip


def test_the_delete_command_says_that_it_waits_for_a_mirror_that_does_not_run(
    cli: CommandLine,
    client: Client,
    valkey_url: str,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty_queue(client)
    mirror(valkey_url, database)
    monkeypatch.setattr("rq_core.cli.commands.queue.TELL_AFTER_S", 0.0)

    told, failed = cli("queue", "delete", "mail", "--wait", "0.15").stderr.splitlines()

    assert told == "rq-core: waits up to 0.15 s for the mirror"
    assert "mail is not deleted" in failed


@pytest.mark.slow
def test_a_running_mirror_ignores_a_deleted_queue_until_the_queue_is_created_again(
    cli: CommandLine,
    client: Client,
    valkey: RedisServer,
    database: Database,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    empty_queue(client)
    stop = threading.Event()
    source = open_source(valkey.url, "rqc")
    running = threading.Thread(
        target=run_mirror, args=(source, database.url), kwargs={"stop": stop}
    )
    running.start()
    try:
        wait_until(lambda: client.run(client.calls.reads.counts("mail")).audit, "it is mirrored")

        cli.ok("queue", "delete", "mail", "--wait", "30")

        wait_until(lambda: "queue mail: was deleted" in caplog.text, "the mirror has noticed it")
        assert left(valkey) == []
        enqueue(client, "b")
        wait_until(
            lambda: auditlog.rows(database, "SELECT * FROM job WHERE job_id = 'b'"),
            "the queue is mirrored again",
        )
    finally:
        stop.set()
        running.join()
        source.close()
    assert verify(database).verdict is LogVerdict.HOLDS


def test_the_delete_command_waits_for_the_mirror_again_if_a_job_was_enqueued_meanwhile(
    client: Client, valkey_url: str, database: Database
) -> None:
    empty_queue(client)
    mirror(valkey_url, database)
    delete = client.calls.deletion.delete

    assert client.run(delete("mail")) == WAITS
    enqueue(client, "b")
    mirror(valkey_url, database)

    assert client.run(client.calls.reads.job("b")) is not None
    (held,) = client.run(claims.claim("mail", "w-1", 1)).jobs
    client.run(claims.complete("mail", "w-1", [(held.id, held.fence)]))
    assert client.run(delete("mail")) == WAITS
    mirror(valkey_url, database)
    assert client.run(delete("mail")) == DELETED
    assert verify(database).verdict is LogVerdict.HOLDS


def test_the_verify_command_reports_a_later_loss_in_redis_though_the_queue_was_deleted_once(
    cli: CommandLine, client: Client, valkey: RedisServer, database: Database
) -> None:
    """Checks a queue that was created again. The event of its deletion does not explain a later loss."""
    empty_queue(client)
    mirror(valkey.url, database)
    client.run(client.calls.deletion.delete("mail"))
    mirror(valkey.url, database)
    cli.ok("queue", "delete", "mail")
    enqueue(client, "b")
    mirror(valkey.url, database)
    with valkey.client() as control:
        control.delete(*KEYS.all())
    enqueue(client, "c")
    url = database.address.render_as_string(hide_password=False)
    cli.ok("audit", "adopt", "--audit", url)
    mirror(valkey.url, database)

    result = verify(database)

    assert len(result.queues["mail"].losses) == 1
    assert "1 live job was lost" in result.queues["mail"].losses[0].says
