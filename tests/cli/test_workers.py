"""`rq-core workers` lists the running workers and the version of their code."""

import re

import pytest

from rq_core.connections.client import Client
from rq_core.model.keys import queue_keys
from rq_core.protocol.reads import worker_registry
from rq_core.protocol.reads.worker_registry import Presence
from tests.cli.conftest import CommandLine


def here(
    client: Client, worker: str, *queues: str, code: str = "c0de0001", after_ms: int = 0
) -> None:
    """Register a running worker."""
    says = Presence("web-1", 4711, "0.1.0", code, queues, 10, 3, 1_795_225_746_000 + after_ms)
    client.run(worker_registry.announce("rqc", worker, says, queues, ["send"]))


def test_the_workers_command_lists_a_worker_of_several_queues_once(
    cli: CommandLine, client: Client
) -> None:
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


def test_the_workers_command_lists_killed_workers_behind_live_ones(
    cli: CommandLine, client: Client
) -> None:
    """Checks a worker that counts as gone, one that has missed a report and still counts as live, and one that was
    replaced by a newer one a moment ago."""
    cli.ok("enqueue", "mail", "send")
    here(client, "w-1", "mail")
    here(client, "w-2", "mail")
    here(client, "w-3", "mail")
    here(client, "w-4", "mail", after_ms=1)
    key = queue_keys("mail")("workers")
    ask = client.calls.delivery.ask
    for worker, silent_s in (("w-1", 40), ("w-2", 20)):
        (row,) = client.run(ask([["HGET", key, worker]], "mail"))
        told_s, says = row.split(" ", 1)
        client.run(ask([["HSET", key, worker, f"{int(told_s) - silent_s} {says}"]], "mail"))

    assert ["w-4", "w-3", "w-2", "w-1"] == [each["worker"] for each in cli.json("workers")]


def test_the_workers_command_reports_that_workers_of_one_queue_run_different_code(
    cli: CommandLine, client: Client
) -> None:
    cli.ok("enqueue", "mail", "send")
    cli.ok("enqueue", "sms", "send")
    here(client, "w-1", "mail")
    here(client, "w-2", "sms", code="c0de0002")
    assert "different code" not in cli.ok("workers")

    here(client, "w-3", "mail", code="c0de0002")

    assert cli.ok("workers").endswith("workers run different code or versions of rq-core in mail\n")


def test_the_workers_command_says_that_no_worker_runs(cli: CommandLine) -> None:
    cli.ok("enqueue", "mail", "send")

    assert cli.ok("workers") == "no worker runs\n"
    assert cli.json("workers") == []


def test_the_workers_command_shows_a_dash_for_an_unknown_start_time(
    cli: CommandLine, client: Client
) -> None:
    """Checks that the start time is not shown as 1970."""
    cli.ok("enqueue", "mail", "send")
    says = Presence("web-1", 4711, "0.1.0", "c0de0001", ("mail",), 10, 3, 0)
    client.run(worker_registry.announce("rqc", "w-1", says, ["mail"], ["send"]))

    assert re.search(r" 0\.1\.0 +- *$", cli.ok("workers"), re.MULTILINE)


@pytest.mark.parametrize("columns", [50, 60, 80])
def test_the_workers_command_drops_columns_before_it_breaks_words(
    cli: CommandLine, client: Client, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """Checks a narrow terminal. Headings and names stay whole."""
    cli.ok("enqueue", "mail", "send")
    cli.ok("enqueue", "reports", "send")
    cli.ok("pause", "reports")
    here(client, "w-0-3f2a9c1e77b0", "mail", "reports")
    monkeypatch.setenv("COLUMNS", str(columns))

    workers, queues = cli.ok("workers"), cli.ok("queues")

    table = [x for x in (workers + queues).splitlines() if not x.startswith("no room for")]
    assert max(map(len, table)) <= columns
    assert re.search(r"^ worker +.*queues", workers, re.MULTILINE)
    assert re.search(r"^ w-0-3f2a9c1e77b0 .*mail,reports ", workers, re.MULTILINE)
    assert ("version" in workers.splitlines()[1]) is False
    assert re.search(r"^no room for: .*version.*; --json prints all$", workers, re.MULTILINE)
    assert re.search(r"^ reports +1 .*paused", queues, re.MULTILINE)
    assert len(queues.splitlines()) - queues.count("no room") == 6
