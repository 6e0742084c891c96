"""Commands about remembered ids. Redis keeps the id of an ended job to detect duplicates."""

from __future__ import annotations

import re

import pytest

from rq_core import App, Unique
from rq_core.connections.client import Client
from rq_core.model.idempotency import id_of_key
from rq_core.protocol.calls import claims
from tests.cli.conftest import CommandLine


@pytest.fixture
def done(cli: CommandLine, client: Client) -> str:
    """Return the remembered id of a job that has ended."""
    cli.ok("enqueue", "mail", "send", "--idempotency-key", "order-42", "--remember", "3600")
    (claim,) = client.run(claims.claim("mail", "w-1", 1)).jobs
    client.run(claims.complete("mail", "w-1", [(claim.id, claim.fence)]))
    return claim.id


def test_enqueue_with_the_idempotency_key_of_an_ended_job_says_that_the_job_has_ended(
    cli: CommandLine, done: str
) -> None:
    assert id_of_key("send", "order-42") == done
    result = cli("enqueue", "mail", "send", "--idempotency-key", "order-42")

    assert (0, f"{done}\n") == (result.exit_code, result.stdout)
    assert result.stderr == (
        f"nothing was enqueued: job {done} has ended, and its id is remembered\n"
    )


def test_the_job_command_says_how_an_ended_job_with_an_idempotency_key_has_ended(
    cli: CommandLine, done: str
) -> None:
    shown = cli.ok("job", done)
    facts = cli.json("job", done)

    assert ["job", "queue", "state", "forgotten"] == [
        line.split()[0] for line in shown.splitlines()
    ]
    assert re.search(r"succeeded, since \d+ s", shown)
    assert "in 59" in shown
    assert ("mail", "succeeded") == (facts["queue"], facts["outcome"])
    assert facts["once_ms"] > facts["at_ms"]


def test_for_the_id_of_a_rejected_enqueue_the_job_command_names_the_existing_job_that_was_returned(
    cli: CommandLine,
) -> None:
    app = App(cli.url)

    @app.task(queue="mail", unique=Unique(per="to"))
    def send(to: str) -> None: ...

    with app:
        first = send.enqueue("a")
        send.with_options(id="other", remember=60).enqueue("a")

    assert re.search(rf"^same as +job {first.id}$", cli.ok("job", "other"), re.MULTILINE)


def test_the_job_command_reports_a_forgotten_id_as_unknown(
    cli: CommandLine, client: Client, done: str
) -> None:
    cli.ok("enqueue", "mail", "send", "--id", "x", "--remember", "0.001")
    (claim,) = client.run(claims.claim("mail", "w-1", 1)).jobs
    client.run(claims.complete("mail", "w-1", [(claim.id, claim.fence)]))

    assert "no live job x" in cli("job", "x").stderr


def test_the_queues_command_counts_remembered_ids_and_says_when_the_store_is_full(
    cli: CommandLine, done: str
) -> None:
    assert "1 id remembered" in cli.ok("queues")
    assert 1 == cli.json("queues")[0]["remembered"]
    cli.ok("set", "mail", "results-max=1")

    assert "no more fit" in cli.ok("queues")
    refused = cli("enqueue", "mail", "send", "--idempotency-key", "order-43")
    assert 1 == refused.exit_code
    assert "results_max" in refused.stderr
