"""Fixtures: real servers, which start when a test first asks for them. Other fixtures check that a test leaves no
thread, process or task behind.

`redis_url` runs a test on each engine: on Valkey and, if `redis-server` is on PATH, on Redis. With CI=true,
`redis-server` must be on PATH. The second run is marked `slow`, so that `scripts/test` leaves it out. `audit_url` runs
a test on SQLite and on PostgreSQL.

With `-n`, several processes share the tests. Each process has servers of its own, so tests do not affect each other. A
test marked `alone` runs while no other test runs (`tests/kit/quiet.py`).
"""

import asyncio
import functools
import inspect
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import redis.utils
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.kit import leaks, servers, statements
from tests.kit.quiet import Room
from tests.kit.reaper import close_reaper
from tests.kit.schemas import create_migrated
from tests.kit.servers import Engine, PostgresServer, RedisServer

# Real servers take their time now and then; a failure prints how to repeat it.
settings.register_profile("rq-core", deadline=None, print_blob=True)
settings.load_profile("rq-core")

# Python's bytecode is kept, whatever the environment says: a run starts some hundreds of processes that import the same
# modules, and each would compile them again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Readline, which pytest imports, gives the processes of a run a width of 80 columns; tables are as wide as they get.
os.environ.pop("COLUMNS", None)
sys.dont_write_bytecode = False

# redis-py reads the metadata of its package, to find its own version, at every connection.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)
statements.share()

ENGINES = servers.engines()


def pytest_report_header() -> list[str]:
    found = ", ".join(f"{each.name} {each.version()}" for each in ENGINES)
    missing = "" if len(ENGINES) > 1 else " only (no redis-server on PATH)"
    return [f"redis engines: {found}{missing}"]


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _mark_repetitions(items)
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.function):
            item.fixturenames.insert(0, "_no_leaked_tasks")
    items.sort(key=_turn)


ON_SECOND_ENGINE: Final = frozenset({"tests/lua/test_remembered.py"})
"""Files whose tests are not marked `slow` on the second engine. What functions remember can be wrong on Redis only."""


def _mark_repetitions(items: list[pytest.Item]) -> None:
    """Mark a test on the second engine as `slow` if it also runs on the first engine."""
    names = {item.nodeid for item in items}
    for item in items:
        if not isinstance(item, pytest.Function) or _file(item.nodeid) in ON_SECOND_ENGINE:
            continue
        engine = item.callspec.params.get("engine") if hasattr(item, "callspec") else None
        for other in ENGINES[1:]:
            first = re.sub(rf"\b{other.name}\b", ENGINES[0].name, item.nodeid)
            if engine == other and first in names:
                item.add_marker("slow")


def _turn(item: pytest.Item) -> int:
    """Return the rank of a test in the run: alone tests first, then long tests, then others, and unit tests last.

    An alone test later in the run would have to wait for all running tests. Short tests come last, so that all
    processes end at about the same time.
    """
    if item.get_closest_marker("alone") is not None:
        return 0
    if _file(item.nodeid) in WHOLE_FILES or item.get_closest_marker("slow") is not None:
        return 1
    return 3 if item.nodeid.startswith("tests/unit/") else 2


def pytest_unconfigure() -> None:
    close_reaper()


# --- Several processes --------------------------------------------------------------------------

_ROOM: Final = pytest.StashKey[Path]()

WHOLE_FILES: Final = frozenset(
    {
        "tests/audit/test_everyday.py",
        "tests/unit/test_wheel.py",
        "tests/web/browser/test_journeys.py",
        "tests/web/browser/test_look.py",
    }
)
"""Files whose tests share something that takes long to make. All tests of such a file run in one process."""


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def pytest_xdist_auto_num_workers() -> int | None:
    """Return the number of processes for `-n auto`: one more than the number of cores.

    Tests spend half of their time waiting.
    """
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    return min(psutil.cpu_count() or 1, 7) + 1


class Shares(LoadScopeScheduling):
    """A scheduler that gives a process its next test when the process is free.

    The files in WHOLE_FILES are exceptions: all tests of such a file run in one process.
    """

    def _split_scope(self, nodeid: str) -> str:
        return file if (file := _file(nodeid)) in WHOLE_FILES else nodeid

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Record that a test has finished, and forget the test. Otherwise xdist would count all finished tests again
        each time."""
        super().mark_test_complete(node, item_index, duration)
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares:
    """Return the scheduler that hands out tests one by one. (xdist's own scheduler for groups fails under pytest
    9.2.)"""
    return Shares(config, log)


def pytest_configure_node(node: Any) -> None:
    """Send the directory of the run's lock files to a test process, before it starts."""
    stash = node.config.stash
    if _ROOM not in stash:
        stash[_ROOM] = servers.private_directory("room")
    node.workerinput["room"] = str(stash[_ROOM])


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of the test's timeout
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    directory = getattr(item.config, "workerinput", {}).get("room")
    if directory is None:
        return (yield)
    with Room(Path(directory)).taken(alone=item.get_closest_marker("alone") is not None):
        return (yield)


# --- Redis and Valkey ---------------------------------------------------------------------------


@pytest.fixture(params=ENGINES, ids=lambda each: each.name)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Return the server program on which the test runs this time."""
    found: Engine = request.param
    return found


@pytest.fixture(scope="session")
def _shared_redis() -> Iterator[Callable[[Engine], RedisServer]]:
    started: dict[str, RedisServer] = {}

    def get(engine: Engine) -> RedisServer:
        if engine.name not in started:
            directory = servers.private_directory(engine.name)
            started[engine.name] = RedisServer(engine, directory).start()
        server = started[engine.name]
        server.reset()
        return server

    yield get
    for server in started.values():
        server.stop()


@pytest.fixture
def redis_server(engine: Engine, _shared_redis: Callable[[Engine], RedisServer]) -> RedisServer:
    """Yield the shared server of this engine, without data. A test that ends its server uses `start_redis` instead."""
    return _shared_redis(engine)


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """Return the URL of an empty server. The test runs on each engine."""
    return redis_server.url


@pytest.fixture
def valkey(_shared_redis: Callable[[Engine], RedisServer]) -> RedisServer:
    """Yield the shared Valkey server, without data. It is for tests whose outcome does not depend on the engine."""
    return _shared_redis(ENGINES[0])


@pytest.fixture
def valkey_url(valkey: RedisServer) -> str:
    return valkey.url


@pytest.fixture
def start_redis(engine: Engine, tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Return a function that starts a server for this test, with options such as `appendfsync="always"`.

    The test runs on each engine.
    """
    started: list[RedisServer] = []

    def start(**options: str) -> RedisServer:
        directory = tmp_path / f"redis-{len(started)}"
        directory.mkdir()
        named = {name.replace("_", "-"): value for name, value in options.items()}
        server = RedisServer(engine, directory, named)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.kill()


# --- SQL ----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    yield server
    server.stop()


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[str]:
    """Return the SQLAlchemy URL of a new, empty PostgreSQL database.

    If the test also uses the fixture `database`, the database already has the schema.
    """
    migrated = "database" in request.fixturenames
    name = create_migrated(postgres_server) if migrated else postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Return the SQLAlchemy URL of an SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'audit.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def audit_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty audit database. The test runs on each kind of database."""
    name = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param]
    url: str = request.getfixturevalue(name)
    return url


# --- Leaks --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    threads, children = leaks.threads(), leaks.children()
    yield
    leaks.assert_no_new_threads(threads)
    leaks.assert_no_new_children(children)


@pytest.fixture
async def _no_leaked_tasks() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    await leaks.assert_no_other_tasks(before)
