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
import gc
import inspect
import itertools
import os
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import redis.utils
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.kit import leaks, lua_chunks, servers, statements
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
lua_chunks.share()
leaks.watch_connections()

ENGINES = servers.engines()
TESTS: Final = Path(__file__).parent


def pytest_report_header() -> list[str]:
    found = ", ".join(f"{each.name} {each.version()}" for each in ENGINES)
    missing = "" if len(ENGINES) > 1 else " only (no redis-server on PATH)"
    return [f"redis engines: {found}{missing}"]


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _mark_repetitions(items)
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.function):
            item.fixturenames.insert(0, "_no_leaked_tasks")
    if hasattr(config, "workerinput"):
        items.sort(key=_folder)  # All processes list the tests in the same order.
        _spread(items)
    items.sort(key=_turn)


def _spread(items: list[pytest.Item]) -> None:
    """Distribute the tests of each folder evenly over the run.

    Tests of workers mostly wait, and tests of the log mostly compute. If all processes ran tests of one folder at the
    same time, they would leave the cores idle, or wait for a core. The tests of a file that share a fixture stay
    together.
    """
    folders = Counter(_folder(item) for item in items)
    passed: Counter[str] = Counter()
    places: dict[str, float] = {}
    for item in items:
        folder = _folder(item)
        together = _file(item.nodeid) if _shares_fixture(item) else item.nodeid
        places.setdefault(together, passed[folder] / folders[folder])
        places[item.nodeid] = places[together]
        passed[folder] += 1
    items.sort(key=lambda item: places[item.nodeid])


def _folder(item: pytest.Item) -> str:
    """Return the folder of a test: ``tests/audit`` for all tests below it."""
    return "/".join(item.nodeid.split("/")[:2])


def _shares_fixture(item: pytest.Item) -> bool:
    """Return whether a test uses a fixture that exists once for its file."""
    found = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    return any(each[-1].scope == "module" for each in found.values())


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


@pytest.hookimpl(tryfirst=True)  # before pytest reads the option
def pytest_configure(config: pytest.Config) -> None:
    """Let the temporary directories of a run in several processes be in memory. They are removed when the run ends.

    Each commit of an SQLite database waits for the disk, and so does each write of Redis to its append-only file.
    """
    options = config.option
    if hasattr(config, "workerinput") and config.args in (["tests"], [str(TESTS)]):
        config.args[:] = _folders_from(config.workerinput)
    if getattr(options, "numprocesses", None) and options.basetemp is None:
        # Some tests execute programs in their directories.
        in_memory = servers.memory_runs_programs()
        options.basetemp = servers.private_directory("temporary", in_memory=in_memory) / "run"


def _folders_from(workerinput: dict[str, Any]) -> list[str]:
    """Return the folders of all tests. Each process of a run begins with another folder.

    In a new checkout, pytest prepares the assertions of each file, and keeps the result for other processes: 12 s of
    processor time for all files. If all processes began with the same file, each would prepare all files.
    """
    folders = sorted(each for each in TESTS.iterdir() if any(each.rglob("test_*.py")))
    sizes = [sum(file.stat().st_size for file in each.rglob("test_*.py")) for each in folders]
    share = int(workerinput["workerid"].removeprefix("gw")) / workerinput["workercount"]
    before = list(itertools.accumulate(sizes, initial=0))
    first = next(at for at, size in enumerate(before) if size >= share * before[-1])
    return [str(each) for each in (*folders[first:], *folders[:first])]


def pytest_sessionstart() -> None:
    """Let no garbage be collected while pytest collects tests. Almost all that it makes, it keeps.

    The process that hands out the tests never collects garbage.
    """
    gc.disable()


def pytest_collection_finish() -> None:
    """Let garbage collections skip what exists before the first test, most of it tests.

    pytest itself collects five times at the end of a run.
    """
    gc.collect()
    gc.freeze()
    # Python's own threshold, 700 new objects, lets collections take a twentieth of the time of the tests.
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


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

    Tests spend half of their time waiting. With more processes, some wait for the processor longer than they allow for.
    """
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    return min(psutil.cpu_count() or 1, 7) + 1


IN_ADVANCE: Final = 4
"""The number of tests that a process has to run at any time, as long as there are more."""


class Shares(LoadScopeScheduling):
    """A scheduler that gives a process its next test when the process is free.

    The files in WHOLE_FILES are exceptions: all tests of such a file run in one process.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._indexes: dict[str, int] = {}

    def _split_scope(self, nodeid: str) -> str:
        return file if (file := _file(nodeid)) in WHOLE_FILES else nodeid

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Record that a test has finished, and forget the test. Otherwise xdist would count all finished tests again
        each time."""
        super().mark_test_complete(node, item_index, duration)
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]

    def _reschedule(self, node: Any) -> None:
        """Give a process some tests in advance.

        A process begins a test only when it has another one after it. If it had no more, it would wait after each test
        for this process, and this process for a core.
        """
        super()._reschedule(node)
        while (
            self.workqueue
            and not node.shutting_down
            and self._pending_of(self.assigned_work[node]) < IN_ADVANCE
        ):
            self._assign_work_unit(node)

    def _assign_work_unit(self, node: Any) -> None:
        """Send a process its next test. Like xdist's method, but it does not search for the test in the list of all."""
        scope, unit = self.workqueue.popitem(last=False)
        self.assigned_work[node][scope] = unit
        if not self._indexes:
            self._indexes = {name: index for index, name in enumerate(self.collection or ())}
        node.send_runtest_some([self._indexes[name] for name, done in unit.items() if not done])


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


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """Check the connections when all fixtures have ended, and with them the event loop of the test."""
    yield
    leaks.assert_no_connections_of_closed_loops()


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
