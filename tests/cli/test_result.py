"""`rq-core result` shows how a job ended, and its result."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import pytest

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile, ties_of
from rq_core.protocol.calls import claims
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.service import Service
from sql_audit.store.connection.database import Database
from tests.cli.conftest import CommandLine
from tests.kit.schemas import lay_schema


def enqueue(client: Client, job_id: str, keep_ms: int = 60_000) -> None:
    job = NewJob(job_id, "mail", profile("send"), "{}", ties=ties_of(keep_ms=keep_ms))
    client.run(client.calls.enqueue.many([job]))


def succeed(client: Client, *values: str) -> None:
    held = [(job.id, job.fence) for job in client.run(claims.claim("mail", "w-1", 10)).jobs]
    client.run(claims.complete("mail", "w-1", held, dict(enumerate(values, 1))))


def test_the_result_command_prints_a_kept_value_as_json(cli: CommandLine, client: Client) -> None:
    enqueue(client, "a")
    succeed(client, '{"pages":3,"title":"Grün"}')

    assert '{"pages": 3, "title": "Grün"}\n' == cli.ok("result", "a")
    expected = {"pages": 3, "title": "Grün"}
    assert {"outcome": "succeeded", "queue": "mail", "id": "a", "value": expected} == cli.json(
        "result", "a", "--queue", "mail", "--wait", "5"
    )


def test_the_result_command_says_why_a_value_is_missing(cli: CommandLine, client: Client) -> None:
    enqueue(client, "a")
    succeed(client, "!too_large")

    found = cli("result", "a")

    assert (0, "") == (found.exit_code, found.stdout), "standard output has values only"
    assert "succeeded; its result is not available (too_large: it is longer" in found.stderr


def test_the_result_command_exits_with_1_for_a_job_that_did_not_succeed(
    cli: CommandLine, client: Client, kill: Callable[..., None]
) -> None:
    kill("mail", "dead")
    enqueue(client, "cancelled")
    client.run(client.calls.admin.cancel("mail", ["cancelled"]))

    dead, cancelled = cli("result", "dead"), cli("result", "cancelled")

    assert (1, 1) == (dead.exit_code, cancelled.exit_code)
    assert dead.stderr.startswith("failed: ")
    assert "cancelled\n" == cancelled.stderr
    assert ("", "") == (dead.stdout, cancelled.stdout)


def test_the_result_command_exits_with_an_error_for_a_job_that_has_not_ended(
    cli: CommandLine, client: Client
) -> None:
    enqueue(client, "a")

    assert "has not ended within 0 s" in cli.line(1, "result", "a")


@pytest.mark.parametrize("words", [(), ("--queue", "mail")])
def test_the_result_command_exits_with_1_for_an_unknown_job(
    cli: CommandLine, client: Client, words: tuple[str, ...]
) -> None:
    client.run(client.calls.delivery.handshake("mail"))
    found = cli("result", "nobody", *words)

    assert 1 == found.exit_code
    said = found.stdout + found.stderr
    assert (
        "neither Redis nor a log knows how it ended" if words else "no queue has a job nobody"
    ) in said


def test_the_result_command_finds_the_queue_of_a_job_in_the_log(
    cli: CommandLine, client: Client, sqlite_url: str
) -> None:
    database = Database(sqlite_url)
    lay_schema(database)
    mirror = Service(Outbox(client), database)
    client.run(client.calls.enqueue.many([NewJob("a", "mail", profile("send"), "{}")]))
    mirror.run(threading.Event(), once=True)
    succeed(client)
    mirror.run(threading.Event(), once=True)
    database.close()

    assert "no queue has a job a, or keeps its result. If" in cli.line(1, "result", "a")
    assert "nor does the log have it" in cli.line(1, "result", "b", "--audit", sqlite_url)
    told = cli.json("result", "a", "--audit", sqlite_url)

    assert ("succeeded", "mail") == (told["outcome"], told["queue"])


def test_the_job_command_shows_the_value_that_a_job_returned(
    cli: CommandLine, client: Client
) -> None:
    enqueue(client, "a")
    succeed(client, '{"pages":3}')
    shown, facts = cli.ok("job", "a"), cli.json("job", "a")

    assert ["job", "queue", "state", "result", "kept"] == [
        line.split()[0] for line in shown.splitlines()
    ]
    assert '{"pages":3}' in shown
    assert re.search(r"in (\d\d s|1 min)", shown)
    assert ("succeeded", {"pages": 3}) == (facts["outcome"], facts["value"])


def test_the_job_command_says_why_a_value_is_missing(cli: CommandLine, client: Client) -> None:
    enqueue(client, "a")
    succeed(client, "!too_large")

    assert "not there: too_large: it is longer than 64 KiB" in cli.ok("job", "a")
    assert "too_large" == cli.json("job", "a")["missing"]
    assert "value" not in cli.json("job", "a")


def test_the_queues_command_counts_kept_and_evicted_results(
    cli: CommandLine, client: Client
) -> None:
    enqueue(client, "a")
    succeed(client, '"' + "x" * 1_000 + '"')
    (before,) = cli.json("queues")
    assert f"1 id remembered or with a result ({before['kept_bytes']:,} bytes" in cli.ok("queues")
    cli.ok("set", "mail", f"kept-max-bytes={before['kept_bytes']}")
    enqueue(client, "b", keep_ms=120_000)
    succeed(client, '"' + "y" * 500 + '"')
    (after,) = cli.json("queues")

    assert (0, 1) == (before["evicted"], after["evicted"])
    assert after["kept_bytes"] <= before["kept_bytes"]
    assert "1 result evicted" in cli.ok("queues")
    assert "not there: evicted" in cli.ok("job", "a")
