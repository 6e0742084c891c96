"""`rq-core workers` shows who works, and which code each worker runs."""

import re

from rq_core.connections.client import Client
from rq_core.protocol import presence
from rq_core.protocol.presence import Presence
from tests.cli.conftest import CommandLine


def here(client: Client, worker: str, *queues: str, code: str = "c0de0001") -> None:
    """A worker says that it is there."""
    says = Presence("web-1", 4711, "0.1.0", code, queues, 10, 3, 1_795_225_746_000)
    client.run(presence.tell("rqc", worker, says, queues, ["send"]))


def test_workers_of_all_queues_are_listed_once(cli: CommandLine, client: Client) -> None:
    cli.ok("enqueue", "mail", "send")
    cli.ok("enqueue", "sms", "send")
    here(client, "w-1", "mail", "sms")
    here(client, "w-2", "sms")

    table = cli.ok("workers")
    first, second = cli.json("workers")

    assert re.search(r"w-1 +web-1 +4711 +mail,sms +3 +10 +c0de0001 +0.1.0", table)
    assert (first["worker"], first["queues"], first["gone"]) == ("w-1", ["mail", "sms"], False)
    assert second["worker"] == "w-2"
    assert [each["worker"] for each in cli.json("workers", "--queue", "mail")] == ["w-1"]


def test_workers_of_one_queue_with_different_code_are_told(
    cli: CommandLine, client: Client
) -> None:
    cli.ok("enqueue", "mail", "send")
    cli.ok("enqueue", "sms", "send")
    here(client, "w-1", "mail")
    here(client, "w-2", "sms", code="c0de0002")
    assert "different code" not in cli.ok("workers")

    here(client, "w-3", "mail", code="c0de0002")

    assert cli.ok("workers").endswith("workers run different code in mail\n")


def test_that_no_worker_runs_is_said(cli: CommandLine) -> None:
    cli.ok("enqueue", "mail", "send")

    assert cli.ok("workers") == "no worker runs\n"
    assert cli.json("workers") == []
