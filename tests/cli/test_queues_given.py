"""Commands that get the option for a queue twice. A command uses both queues, or refuses the second queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from rq_core import App
from tests.kit import processes
from tests.kit.witness import WITNESS, Witness

QUEUES = ("first", "second")


@pytest.fixture
def jobs(valkey_url: str) -> str:
    """Return the URL of a server with two queues of one job each."""
    with App(valkey_url) as app:
        for queue in QUEUES:
            app.enqueue(queue, "note", {"queue": queue, "key": f"{queue}-1"})
    return valkey_url


@pytest.mark.slow
def test_a_worker_serves_every_queue_if_the_option_for_queues_is_given_more_than_once(
    jobs: str, tmp_path: Path
) -> None:
    witness, log = Witness(tmp_path / "witness"), tmp_path / "log"
    words = ("rq_core.cli", "worker", "tests.rigs.shards:app", "-q", "first", "-q", "second=2")
    variables = {WITNESS: str(witness.path)}
    with processes.python(
        *words, "--burst", "--force", "--redis", jobs, log=log, variables=variables
    ) as worker:
        worker.finish(30)

    assert {line["queue"] for line in witness.lines()} == set(QUEUES)


@pytest.mark.slow
def test_the_verify_command_checks_every_queue_if_the_option_for_queues_is_given_more_than_once(
    jobs: str, tmp_path: Path
) -> None:
    audit = ("--audit", f"sqlite:///{tmp_path / 'audit.db'}")
    assert processes.rq_core("audit", "run", "--once", *audit, "--redis", jobs).returncode == 0

    both = processes.rq_core("audit", "verify", *audit, "-q", "first", "-q", "second")
    typo = processes.rq_core("audit", "verify", *audit, "-q", "first", "-q", "typo")

    assert both.returncode == 0, both.stderr
    assert all(queue in both.stdout for queue in QUEUES)
    assert typo.returncode == 2
    assert "typo" in typo.stderr


def test_commands_for_one_queue_refuse_a_second_queue(tmp_path: Path) -> None:
    ran = processes.rq_core(
        "audit", "report", "--audit", str(tmp_path / "no.db"), "-q", "a", "-q", "b"
    )

    assert ran.returncode == 2
    assert "give one queue" in ran.stderr
