"""A SQLite database that the mirror's user may not write. One error names the cause and the remedy."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rq_core.connections.client import Client
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, profile
from sql_audit.store.connection import driver_errors
from tests.kit import crew
from tests.kit.processes import ROOT, Child
from tests.kit.wait import wait_until
from tests.kit.witness import WITNESS

BOUND = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
"""The beginning of a command that runs without root's right to write any file."""
HOW = "give the user these rights, or name another file"


def rq_core(*words: str) -> subprocess.CompletedProcess[str]:
    command = [*BOUND, sys.executable, "-m", "rq_core.cli", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )


@pytest.fixture
def audit(tmp_path: Path, valkey_url: str, client: Client) -> Iterator[Path]:
    """Yield a log in a directory of its own. No mirror has left a file there, and one job is not mirrored."""
    directory = tmp_path / "logs"
    directory.mkdir()
    path = directory / "audit.db"
    client.run(client.calls.delivery.handshake("crew"))
    done = rq_core("audit", "run", "--once", "--audit", str(path), "--redis", valkey_url)
    assert done.returncode == 0, done.stderr
    client.run(client.calls.enqueue.one(NewJob(JobIds()(), "crew", profile("t"), "{}")))
    yield path
    directory.chmod(stat.S_IRWXU)


def close_directory(path: Path) -> str:
    path.parent.chmod(0o555)
    return f"may not write into the directory {path.parent}"


def close_file(path: Path) -> str:
    path.chmod(0o444)
    return f"may not write the file {path}"


def close_lock(path: Path) -> str:
    lock = path.with_name(path.name + "-mirror")
    lock.chmod(0o444)
    return f"may not write the file {lock}"


def remove_and_close(path: Path) -> str:
    for each in path.parent.iterdir():
        each.unlink()
    return close_directory(path)


@pytest.mark.parametrize("close", [close_directory, close_file, close_lock, remove_and_close])
@pytest.mark.slow
def test_the_error_for_an_unwritable_database_names_the_cause_and_the_remedy(
    close: Callable[[Path], str], audit: Path, valkey_url: str
) -> None:
    says = close(audit)

    done = rq_core("audit", "run", "--once", "--audit", str(audit), "--redis", valkey_url)

    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("rq-core: ")]
    assert line.startswith(f"rq-core: the audit database {audit} cannot be used: user ")
    assert says in line
    assert HOW in line


@pytest.mark.slow
def test_readers_get_an_error_for_a_database_in_an_unwritable_directory(audit: Path) -> None:
    says = close_directory(audit)

    done = rq_core("audit", "verify", "--audit", str(audit))

    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.slow
def test_workers_continue_while_their_mirror_may_not_write(
    audit: Path, valkey_url: str, tmp_path: Path
) -> None:
    says = close_file(audit)
    witness = crew.Witness(tmp_path / "witness")
    with Client(valkey_url) as client:
        crew.app.connect_to(valkey_url)
        try:
            words = [
                "worker", "tests.kit.crew:app", "-q", "crew", "--redis", valkey_url, "--audit", str(audit),
            ]  # fmt: skip
            with Child(
                [*BOUND, sys.executable, "-m", "rq_core.cli", *words],
                tmp_path / "worker.log",
                {WITNESS: str(witness.path)},
            ) as process:
                process.wait_said(says)
                crew.coroutine.enqueue(1)
                wait_until(lambda: witness.lines("coroutine"), "the job has run", timeout=30)
                process.terminate()
                assert process.wait(30) == 0
        finally:
            crew.app.close()
        assert client.run(client.calls.reads.counts("crew")).backlog > 1

    assert process.said().count(f"{says}. ") == 1


def test_the_error_names_a_file_system_that_is_mounted_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))

    assert driver_errors.missing(tmp_path / "audit.db") == (
        f"the file system of {tmp_path} is mounted read-only"
    )
