"""The demo as a test of the whole system: real files, a killed worker, and the comparison of three records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, delete, insert

from rq_core.connections.client import Client
from rq_core.embedded import server
from sql_audit.demo.stage import find_files, most_at_once
from sql_audit.store.schema.tables import job_event
from tests.kit.processes import Child
from tests.kit.servers import free_port
from tests.kit.wait import wait_until


def run_demo(cwd: Path, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "sql_audit.demo", "--json", *options],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def check(answer: dict[str, Any]) -> None:
    assert list(answer) == [
        "files", "succeeded", "dead", "lease_expired", "events", "digest_mismatches", "duplicates",
        "compressed", "compressing", "seconds",
    ]  # fmt: skip
    # How many these are depends on whose Python it is: Debian's library is a third of python.org's.
    assert answer["files"] == len(find_files(Path(sysconfig.get_path("stdlib"))))
    assert answer["succeeded"] == answer["files"]
    assert (answer["dead"], answer["digest_mismatches"]) == (0, 0)
    assert answer["lease_expired"] >= 1
    assert answer["compressed"] >= answer["files"] // 20
    assert answer["compressing"] == 2


@pytest.mark.slow
def test_the_demo_without_options_starts_its_own_server(tmp_path: Path) -> None:
    check(run_demo(tmp_path))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_demo_runs_on_given_servers(valkey_url: str, postgres_url: str, tmp_path: Path) -> None:
    check(run_demo(tmp_path, "--redis", valkey_url, "--audit", postgres_url))

    with Client(valkey_url) as client:
        assert client.run(client.calls.delivery.ask([["KEYS", "*"]])) == [[]]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Path]:
    """Return the directory in which the option --keep leaves files. After the test, stop the server there."""
    yield tmp_path
    for place in tmp_path.glob("rq-core-demo-*/server"):
        server.stop_server(place)


@pytest.mark.slow
def test_the_commands_that_the_demo_prints_work_on_the_files_that_the_demo_kept(kept: Path) -> None:
    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=kept,
            env={**os.environ, "TMPDIR": str(kept)},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    lines = run("sql_audit.demo", "--keep").splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("Kept in ")]
    (redis_cli, _, socket, _), *commands = [line.split() for line in lines[at + 1 : at + 4]]

    assert redis_cli == "redis-cli"
    assert Path(socket).is_socket()
    assert [words[:3] for words in commands] == [
        ["rq-core", "audit", "report"], ["rq-core", "server", "stop"],
    ]  # fmt: skip
    report, stopped = (run("rq_core.cli", *words[1:]) for words in commands)
    assert "digest" in report
    assert stopped == "stopped\n"


def test_the_demo_finds_an_exceeded_cap_in_sql(sqlite_url: str) -> None:
    """Checks that the demo counts holders after each event. A job that ends makes room before the next claim."""
    engine = create_engine(sqlite_url)
    job_event.create(engine)
    log = [
        ("a", "enqueued"), ("b", "enqueued"), ("c", "enqueued"), ("other", "enqueued"),
        ("a", "claimed"), ("other", "claimed"), ("a", "lease_expired"), ("b", "claimed"),
        ("a", "claimed"), ("b", "succeeded"), ("c", "claimed"),
    ]  # fmt: skip
    with engine.connect() as connection:

        def told(*more: tuple[str, str]) -> int:
            rows = [
                {
                    "queue": "q", "epoch": 1, "seq": seq, "ordinal": 0, "type": kind, "at_ms": seq,
                    "job_id": job, "task": "other" if job == "other" else "compress",
                }
                for seq, (job, kind) in enumerate([*log, *more])
            ]  # fmt: skip
            connection.execute(insert(job_event), rows)
            return most_at_once(connection, "q", "compress")

        assert told() == 2
        connection.execute(delete(job_event))
        assert told(("d", "enqueued"), ("d", "claimed")) == 3
    engine.dispose()


def test_the_demo_reports_in_one_line_that_a_folder_has_too_few_files(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sql_audit.demo", "--path", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr == f"demo: {tmp_path} has 0 files; the demo wants at least 50\n"


@pytest.mark.parametrize("option", [["--redis", "redis://127.0.0.1:1"], ["--redis", "nonsense"]])
@pytest.mark.slow
def test_the_demo_reports_an_unreachable_server_in_one_line(option: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sql_audit.demo", *option],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr.startswith("demo: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_the_demo_with_the_option_web_serves_a_page_about_its_queue_until_it_is_stopped(
    tmp_path: Path,
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    # Enough files that work is left when the demo kills a worker.
    for number in range(1_500):
        (files / f"{number}.txt").write_text(str(number) * 1_000)
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "sql_audit.demo",
        "--path",
        str(files),
        "--web",
        f"127.0.0.1:{port}",
    ]

    with Child(command, tmp_path / "log") as process:
        wait_until(lambda: "until Ctrl-C" in process.said(), "the page stays", timeout=100)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/index.json", timeout=10) as answer:
            document = json.load(answer)
        process.send_signal(signal.SIGINT)
        status = process.wait(90)
        said = process.said()

    assert [each["queue"].partition("-")[0] for each in document["queues"]] == ["demo"]
    assert (status, document["unread"]) == (0, [])
    assert "All agree" in said
