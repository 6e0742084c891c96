"""Losses of all data in Redis while no mirror runs. The log records the loss even if no client uses the queue later."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from rq_core.cli.root import root
from rq_core.connections.client import Client
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.service import run_mirror
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import metadata
from tests.audit.epochs.forgetting import enqueue
from tests.kit import auditlog
from tests.kit.agreement import assert_agree, states
from tests.kit.command import audit
from tests.kit.fleet import QUEUE
from tests.kit.liar import lying
from tests.kit.servers import RedisServer

Lose = Callable[[], None]


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    return redis_server


@pytest.fixture
def client(server: RedisServer) -> Client:
    return Client(server.url)


def lose_everything(server: RedisServer) -> None:
    with server.client() as control:
        control.flushall()


def mirror_once(client: Client, database: Database) -> None:
    """Start a mirror of all queues, and let it run once."""
    run_mirror(Outbox(client), database, stop=threading.Event(), once=True)


def url(database: Database) -> str:
    return database.address.render_as_string(hide_password=False)


def doctor(server: RedisServer, database: Database, *words: str) -> Result:
    command = ["doctor", *words, "--redis", server.url, "--audit", url(database), "--json"]
    return CliRunner().invoke(root, command)


def found_by(done: Result) -> list[str]:
    return [each["says"] for report in json.loads(done.stdout) for each in report["found"]
            if report["queue"] is not None]  # fmt: skip


def test_a_mirror_that_starts_after_a_loss_records_the_loss(
    server: RedisServer, client: Client, database: Database
) -> None:
    """Checks that the mirror finds the queue in the log, since Redis' list of queues is empty."""
    with client:
        enqueue(client, "a", "b")
        mirror_once(client, database)
        before = verify(database).queues[QUEUE]
        lose_everything(server)
    with Client(server.url) as later:
        mirror_once(later, database)
        # Looked at before `assert_agree`, which mirrors the queue itself.
        told = verify(database).queues[QUEUE].losses
        result = assert_agree(later, database, LogVerdict.HOLDS)
        # The floor: nothing that has a number of the log is given again.
        assert (result.epoch or 0) > (before.epoch or 0)

    (loss,) = told
    assert "Redis remembered nothing: 2 live jobs were lost" in loss.says
    assert states(database) == {"a": "lost", "b": "lost"}


@pytest.mark.parametrize("named", [(), (QUEUE,)], ids=["all", "named"])
def test_doctor_and_verify_report_a_loss_that_no_mirror_has_recorded(
    server: RedisServer, client: Client, database: Database, named: tuple[str, ...]
) -> None:
    with client:
        enqueue(client, "a", "b")
        mirror_once(client, database)
    lose_everything(server)

    looked = doctor(server, database, *named)
    proof = audit("verify", "--audit", url(database), "--redis", server.url)

    says = "Redis has lost the queue, and has nothing of it: by the log 2 jobs were alive"
    assert looked.exit_code == 1
    (found,) = found_by(looked)
    assert found.startswith(says)
    assert proof.exit_code == 2
    assert f"Z: {says}" in proof.output
    assert "  lost: " in proof.output
    assert "violated" not in proof.output
    with server.client() as control:
        assert control.keys("rqc:*") == []


def test_a_queue_that_was_created_again_and_is_not_mirrored_counts_as_lost(
    server: RedisServer, client: Client, database: Database
) -> None:
    """Checks a new queue without a stamp. The doctor knows the loss only after `audit adopt` has bound this server to
    the log."""
    with client:
        enqueue(client, "a")
        mirror_once(client, database)
    lose_everything(server)
    with Client(server.url) as later:
        enqueue(later, "b")

    unknown = doctor(server, database)
    adopted = audit("adopt", "--redis", server.url, "--audit", url(database))
    looked = doctor(server, database)

    assert (unknown.exit_code, found_by(unknown)) == (2, [])
    assert "rq-core audit adopt --redis" in unknown.output
    assert adopted.exit_code == 0, adopted.output
    assert looked.exit_code == 1
    assert (
        "Redis has lost the queue, and made it again: by the log 1 job was alive"
        in found_by(looked)[0]
    )
    with Client(server.url) as later:
        mirror_once(later, database)
    assert states(database) == {"a": "lost", "b": "ready"}
    assert verify(database).verdict is LogVerdict.HOLDS


def test_a_deleted_queue_agrees_with_its_log(
    server: RedisServer, client: Client, database: Database
) -> None:
    """Checks verify and the doctor after the mirror has copied all events and the queue was deleted."""
    with client:
        enqueue(client, "a", "b")
        mirror_once(client, database)
        client.run(client.calls.admin.cancel(QUEUE, ["a", "b"], by="ada", why="over"))
        assert client.run(client.calls.deletion.delete(QUEUE)) == "waits"
        mirror_once(client, database)
        assert client.run(client.calls.deletion.delete(QUEUE)) == "deleted"

    proof = audit("verify", "--audit", url(database), "--redis", server.url)

    assert proof.exit_code == 0, proof.output
    assert found_by(doctor(server, database)) == []


def test_the_verdict_is_unknown_for_a_queue_whose_rows_were_deleted_only_from_sql(
    server: RedisServer, client: Client, database: Database
) -> None:
    """Checks a queue whose rows were deleted from SQL. Redis still knows how far the mirror has trimmed its outbox."""
    with client:
        enqueue(client, "a")
        client.run(client.calls.delivery.handshake("kept"))
        mirror_once(client, database)
    forge_away(database, QUEUE)

    assert audit("verify", "--audit", url(database)).exit_code == 0
    proof = audit("verify", "--audit", url(database), "--redis", server.url)

    assert proof.exit_code == 2, proof.output
    assert (
        "SQL has nothing of the queue, and Redis was trimmed for this database up to"
        in proof.output
    )


def forge_away(database: Database, queue: str) -> None:
    """Delete all rows of a queue from SQL. The owner of the tables can do this."""
    with lying(database) as connection:
        for table in metadata.tables.values():
            if "queue" in table.columns:
                connection.execute(table.delete().where(table.c.queue == queue))


def test_a_queue_whose_log_is_off_does_not_count_as_lost(
    server: RedisServer, client: Client, database: Database
) -> None:
    """The last event of the log is the switch to "off". Later, Redis loses all its data."""
    with client:
        enqueue(client, "a")
        mirror_once(client, database)
        enqueue(client, "b")
        off = audit("off", QUEUE, "--redis", server.url, "--audit", url(database))
        enqueue(client, "c")
    assert off.exit_code == 0, off.output
    assert states(database) == {"a": "ready", "b": "ready"}
    lose_everything(server)

    with Client(server.url) as later:
        mirror_once(later, database)
        assert later.run(later.calls.reads.queues()) == []
    assert found_by(doctor(server, database)) == []
    assert verify(database).verdict is LogVerdict.HOLDS
    last = auditlog.events(database, QUEUE)[-1]
    assert (last["type"], json.loads(last["detail"])["new"]) == ("policy_changed", "off")


def test_a_queue_whose_log_was_switched_on_again_counts_as_lost(
    server: RedisServer, client: Client, database: Database
) -> None:
    with client:
        enqueue(client, "a")
        mirror_once(client, database)
        assert not audit("off", QUEUE, "--redis", server.url, "--audit", url(database)).exception
        mirror_once(client, database)
    lose_everything(server)

    assert "Redis has lost the queue" in found_by(doctor(server, database))[0]
