"""Health checks, which report how long ago Redis answered a claim. A process that only runs is not healthy."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from rq_core import InvalidOption
from rq_core.app.app import App
from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.masking import masked
from rq_core.process import health, http_port
from tests.kit import crew
from tests.kit.crew import worker_process
from tests.kit.servers import RedisServer, free_port
from tests.kit.wait import wait_until
from tests.metrics.scrape import get

pytestmark = pytest.mark.usefixtures("own_directory")


def ask(*words: str) -> tuple[int, Any]:
    """Run `rq-core health` in this process. Return its exit status and its JSON."""
    done = CliRunner().invoke(root, ["health", "--json", *words])
    return done.exit_code, json.loads(done.stdout)


def probe(port: int) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except OSError:
        return 0, None


def test_the_health_check_reports_a_machine_without_workers_as_unhealthy() -> None:
    command = [sys.executable, "-m", "rq_core.cli", "health", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, json.loads(done.stdout)) == ask()
    assert ask() == (1, {"healthy": False, "max_age_s": 30.0, "age_s": None, "workers": []})


@pytest.mark.slow
def test_a_live_worker_that_cannot_claim_becomes_unhealthy(
    start_redis: Callable[..., RedisServer], witness: crew.Witness
) -> None:
    server, port = start_redis(), free_port()
    with App(server.url) as app:
        app.enqueue("crew", "coroutine", {})
    with worker_process(server.url, witness, "--grace", "0", "--health", str(port)) as process:
        wait_until(lambda: witness.lines("coroutine"), "the worker works", timeout=20)
        status, report = ask("--max-age", "3")
        assert (status, report["healthy"], probe(port)[0]) == (0, True, 200)
        assert [each["pid"] for each in report["workers"]] == [process.pid]

        server.freeze()
        wait_until(lambda: ask("--max-age", "3")[0] == 1, "it is too old", timeout=20)
        server.thaw()
        wait_until(lambda: ask("--max-age", "3")[0] == 0, "it claims again", timeout=20)
        process.terminate()
        process.wait(20)

    assert ask()[1]["workers"] == []


def test_health_lists_the_redis_server_and_the_queues_of_each_worker(
    client: Client, app: App, witness: crew.Witness
) -> None:
    """Checks a queue without workers. Workers of other queues or servers must not make it look healthy."""
    with_password = app.redis_url.replace("redis://", "redis://default:s3cret@")
    health.Pulse().start("w-other", ["sms"], server=masked(with_password))
    with worker_process(app.redis_url, witness):
        (here,) = wait_until(lambda: ask("--queue", "crew")[1]["workers"], "it works", timeout=20)
        table = CliRunner().invoke(root, ["health"]).stdout

    assert here["server"] == app.redis_url
    assert "s3cret" not in table
    assert re.search(r"w-other +\d+ +sms +redis://default:\*\*\*@", table)
    assert re.search(rf"crew +{re.escape(app.redis_url)}", table)
    assert [each["worker"] for each in ask("--queue", "sms")[1]["workers"]] == ["w-other"]
    none = CliRunner().invoke(root, ["health", "--queue", "mail"])
    assert (none.exit_code, none.stdout) == (1, "no worker of mail runs here\n")


@pytest.mark.slow
def test_the_health_probe_of_a_supervisor_reports_its_workers(
    client: Client, app: App, witness: crew.Witness
) -> None:
    port = free_port()
    with worker_process(app.redis_url, witness, "--processes", "2", "--health", str(port)):
        _, report = wait_until(
            lambda: (found := probe(port))[0] == 200 and len(found[1]["workers"]) == 2 and found,
            "both work",
            timeout=30,
        )

    assert report["age_s"] <= report["max_age_s"] == 30


def test_the_health_file_of_a_killed_worker_is_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    place = tmp_path / "workers"
    pulse = health.Pulse(place)
    pulse.start("w-1", ["q"])
    facts = json.loads((place / "w-1.json").read_text())
    (place / "w-2.json").write_text(json.dumps(facts | {"pid": dead.pid, "worker": "w-2"}))

    assert [each.worker for each in health.local_workers(place)] == ["w-1"]
    assert [each.name for each in place.iterdir()] == ["w-1.json"]
    pulse.end()
    assert health.local_workers(place) == []


def test_a_worker_that_starts_removes_the_health_files_of_killed_workers(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / "old.json").write_text(
        json.dumps({"pid": dead.pid, "parent": 1, "worker": "old", "queues": []})
    )

    health.Pulse(tmp_path).start("new", ["q"])

    assert [each.name for each in tmp_path.glob("*.json")] == ["new.json"]


def test_a_health_directory_of_another_user_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, elsewhere = tmp_path / "workers", tmp_path / "elsewhere"
    elsewhere.mkdir()
    place.symlink_to(elsewhere)

    health.Pulse(place).start("w-1", ["q"])

    assert list(elsewhere.iterdir()) == []
    assert "belongs to another user" in caplog.text


def test_health_shows_the_time_since_the_last_claim_of_a_worker(
    tmp_path: Path,
) -> None:
    pulse = health.Pulse(tmp_path / "workers")
    pulse.start("w-1", ["q"])
    os.utime(tmp_path / "workers" / "w-1.json", (1, 1))
    (old,) = health.local_workers(tmp_path / "workers")
    pulse.beat()
    (new,) = health.local_workers(tmp_path / "workers")
    pulse.end()

    assert old.age_s > 1e9
    assert new.age_s < 5
    assert health.verdict([old, new], 30)[0] is False


@pytest.mark.parametrize("text", ["", "x", "1:x", "70000", "-1"])
def test_an_invalid_address_of_the_health_probe_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="PORT"):
        http_port.parse_address(text)


def test_the_health_probe_makes_no_dns_query(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("socket.getfqdn", asked.append)

    probe = health.Probe("0")
    probe.close()

    assert asked == []


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1"])
def test_the_error_of_an_address_that_cannot_be_bound_names_the_address(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"{host}:{taken.getsockname()[1]}"
        with pytest.raises(InvalidOption, match=f"health='{address}' .* can listen on \\("):
            health.Probe(address)


@pytest.fixture
def clients() -> Iterator[list[socket.socket]]:
    """Yield a list for a test's connections. After the test, close the connections in the list."""
    with contextlib.ExitStack() as ends:
        made: list[socket.socket] = []
        ends.callback(lambda: [each.close() for each in made])
        yield made


def test_slow_clients_of_the_health_probe_block_no_other_client_and_hold_few_descriptors(
    clients: list[socket.socket],
) -> None:
    """Checks 60 clients that send one byte of a request. The worker keeps enough file descriptors for Redis."""
    process = psutil.Process()
    with contextlib.closing(health.Probe("0")) as probe:
        before = process.num_fds()
        for _ in range(60):
            clients.append(socket.create_connection(("127.0.0.1", probe.port)))
            clients[-1].sendall(b"G")
        began = time.monotonic()
        status, _ = get(probe.port, "/")
        took = time.monotonic() - began

        assert status == 503
        assert took < http_port.REQUEST_WAIT_S / 2
        assert process.num_fds() - before - len(clients) <= http_port.CONNECTIONS_MAX


@pytest.mark.parametrize("part", ["request", "answer"])
def test_a_client_that_sends_or_reads_single_bytes_does_not_extend_its_timeout(
    clients: list[socket.socket], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Checks that the timeout of a request or an answer does not begin again with each byte."""
    for name in ("REQUEST_WAIT_S", "ANSWER_WAIT_S", "LOOK_EVERY_S"):
        monkeypatch.setattr(http_port, name, 0.3)
    large = health.Answer(200, "text/plain", b"x" * 50_000_000)
    process = psutil.Process()
    with contextlib.closing(health.Probe("0", pages={"/large": lambda: large})) as probe:
        before = process.num_fds()
        client = socket.create_connection(("127.0.0.1", probe.port))
        clients.append(client)
        client.sendall(b"GET /" if part == "request" else b"GET /large HTTP/1.0\r\n\r\n")
        wait_until(lambda: process.num_fds() == before + 2, "it has a connection")

        def ended() -> bool:
            with contextlib.suppress(OSError):
                client.recv(1) if part == "answer" else client.sendall(b"x")
            return process.num_fds() == before + 1

        wait_until(ended, "the connection is closed", timeout=4)
        assert get(probe.port, "/")[0] == 503


def test_a_page_that_raises_is_logged_and_answered_with_500(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> health.Answer:
        raise ZeroDivisionError("planted")

    with contextlib.closing(health.Probe("0", pages={"/metrics": fail})) as probe:
        status, text = get(probe.port)
        healthy, _ = get(probe.port, "/")

    assert (status, healthy) == (500, 503)
    assert "worker's log" in text
    assert "planted" in caplog.text


def test_a_client_that_disconnects_early_logs_no_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    asked, gone = threading.Event(), threading.Event()

    def large() -> health.Answer:
        asked.set()
        gone.wait(10)
        return health.Answer(200, "text/plain", b"x" * 50_000_000)

    with contextlib.closing(health.Probe("0", pages={"/metrics": large})) as probe:
        client = socket.create_connection(("127.0.0.1", probe.port))
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert asked.wait(10)
        # With what it has not read, it ends by a reset.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        gone.set()
        assert get(probe.port, "/")[0] == 503

    assert capfd.readouterr().err == ""
