"""Workers under a supervisor, and the mirror beside them."""

from __future__ import annotations

import os
import signal
import subprocess

import psutil
import pytest

from rq_core.app import App
from rq_core.client import Client
from tests.support import crew
from tests.support.crew import worker_process
from tests.support.wait import wait_until


def test_the_mirror_ends_with_a_supervisor_that_was_killed(
    client: Client, witness: crew.Witness, app: App, sqlite_url: str
) -> None:
    """It would hold the database against the mirror of the next deploy."""
    with worker_process(app.redis_url, witness, "--audit", sqlite_url, "--grace", "1") as process:
        app.enqueue_many(crew.function.job(n=n) for n in range(5))
        wait_until(lambda: client.counts("crew").audit, "the mirror has attached", timeout=30)
        family = psutil.Process(process.pid).children(recursive=True)
        assert any("sql_audit.run" in " ".join(each.cmdline()) for each in family)
        process.kill()
        wait_until(lambda: not any(map(_lives, family)), "all have ended", timeout=20)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("audit", "expected"),
    [
        ("nonsense://x", "nonsense is not supported, only sqlite and postgresql"),
        ("postgresql://127.0.0.1:1/x", "does not answer: connection failed"),
    ],
)
def test_an_audit_database_that_cannot_be_used_is_refused_at_the_start(
    app: App, client: Client, witness: crew.Witness, audit: str, expected: str
) -> None:
    """It was tried again every second for ever, and the jobs ran unaudited."""
    handle = crew.function.enqueue(1)
    with worker_process(app.redis_url, witness, "--audit", audit) as process:
        assert process.wait(30) == 1

    said = witness.path.with_suffix(".log").read_text()
    assert expected in said
    assert len(said.splitlines()) == 1, said
    assert handle.state() == "ready"


def test_a_mirror_that_dies_is_replaced(
    app: App, client: Client, witness: crew.Witness, sqlite_url: str
) -> None:
    with worker_process(app.redis_url, witness, "--audit", sqlite_url, "--grace", "1") as process:
        wait_until(lambda: client.counts("crew").audit, "the mirror has attached", timeout=30)
        os.kill(_mirror(process).pid, signal.SIGKILL)
        wait_until(
            lambda: "the mirror ended with status -9, restarting" in _log(witness), "it is noticed"
        )
        app.enqueue_many(crew.function.job(n=n) for n in range(5))
        wait_until(lambda: len(witness.lines()) == 5, "the jobs are done", timeout=20)
        wait_until(lambda: client.counts("crew").backlog == 0, "all is mirrored", timeout=20)
        process.terminate()
        assert process.wait(30) == 0


def _mirror(process: subprocess.Popen[bytes]) -> psutil.Process:
    family = psutil.Process(process.pid).children(recursive=True)
    return next(each for each in family if "sql_audit.run" in " ".join(each.cmdline()))


def _log(witness: crew.Witness) -> str:
    return witness.path.with_suffix(".log").read_text()
