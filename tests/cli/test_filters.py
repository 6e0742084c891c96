"""Commands that change all jobs of a queue that match a filter."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from rq_core.cli import filters
from rq_core.connections.client import Client
from rq_core.model.headers import headers_json
from rq_core.model.job import NewJob, profile
from rq_core.protocol.calls import bulk
from rq_core.protocol.calls.bulk import Bulk, BulkPlace
from tests.cli.conftest import CommandLine

MAIL = ("--queue", "mail")


def enqueue(client: Client, count: int, task: str = "send", **fields: Any) -> None:
    jobs = (
        NewJob(f"{task}-{n}", "mail", profile(task), f'{{"n":{n}}}', **fields) for n in range(count)
    )
    client.run(client.calls.enqueue.many(jobs))


def test_each_filter_option_of_a_command_becomes_a_term_of_the_filter(
    cli: CommandLine, client: Client
) -> None:
    enqueue(client, 6, headers_json=headers_json({"tenant": "acme"}))
    enqueue(client, 4, "other", delay_ms=60_000)

    def count(*words: str) -> int:
        found = cli.json("cancel", *MAIL, *words, "--dry-run")
        assert (found["dry_run"], found["changed"]) == (True, 0)
        return int(found["matched"])

    assert count("--task", "send") == 6
    assert count("--state", "scheduled") == 4
    assert count("--state", "ready,scheduled") == 10
    assert count("--header", "tenant=acme", "--arg", "n=3") == 1
    assert count("--older", "1h") == count("--until", "1m ago") == 0
    assert count("--since", "1m ago", "--where", "priority:normal task:other") == 4
    assert count("--scope", "tenant=acme") == 0


def test_the_option_yes_changes_matching_jobs_and_logs_who_did_it_and_why(
    cli: CommandLine, client: Client
) -> None:
    enqueue(client, 6)
    enqueue(client, 4, "other", delay_ms=60_000)

    assert cli.ok("cancel", *MAIL, "--task", "send", "--dry-run") == "6 jobs match: 6 ready\n"
    said = cli.ok(
        "cancel",
        *MAIL,
        "--task",
        "send",
        "--limit",
        "5",
        "--yes",
        "--by",
        "ann",
        "--reason",
        "closed",
    )
    found = re.fullmatch(r"5 jobs cancelled, bulk ([0-9a-f]{16})\n", said)
    assert found
    (_, raw) = client.run(client.calls.reads.snapshot("mail"))["outbox"][-1]
    assert (raw["by"], raw["why"]) == ("ann", f"bulk {found[1]}: closed")
    edited = cli.json("edit", *MAIL, "--state", "scheduled", "--priority", "high", "--yes")
    assert (edited["changed"], edited["filter"]) == (4, "queue:mail state:scheduled")


def test_the_edit_command_says_how_many_matching_jobs_cannot_be_changed_and_why(
    cli: CommandLine, client: Client
) -> None:
    enqueue(client, 3, ties='{"expires_in":60000}')

    line = cli.line(1, "edit", *MAIL, "--task", "send", "--delay", "120", "--yes")

    assert line == "3 jobs not edited: it would become ready at its deadline or later"


def test_an_interrupted_change_prints_its_progress_and_the_option_that_continues_it(
    cli: CommandLine, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(client, 6)
    monkeypatch.setattr(bulk, "IDS_CHUNK", 2)
    monkeypatch.setattr(filters, "PROGRESS_S", 0.0)
    original = Bulk.run

    def interrupted(self: Bulk, change: Any, place: Any, told: Callable[[BulkPlace], None]) -> Any:
        def once(at: BulkPlace) -> None:
            told(at)
            if at.changed:
                raise KeyboardInterrupt

        return original(self, change, place, once)

    monkeypatch.setattr(Bulk, "run", interrupted)
    stopped = cli("cancel", *MAIL, "--task", "send", "--yes")
    monkeypatch.setattr(Bulk, "run", original)

    assert stopped.exit_code == 130
    assert "rq-core: 2 read, 2 cancelled\n" in stopped.stderr
    place = re.search(r"--resume '(\S+)' goes on", stopped.stderr)
    assert place
    resumed = cli("cancel", *MAIL, "--task", "send", "--yes", "--json", "--resume", place[1])
    assert '"changed":6' in resumed.stdout
    assert ", round 2\n" in resumed.stderr
