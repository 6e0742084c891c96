"""The keeper of one embedded server: a small process that starts the server as its child, and ends the idle server.

Valkey has no option to end when it has no clients. So the keeper regularly asks the server for the number of its
clients. It ends the server after a given time without clients. `rq_core.embedded.server` runs this file by its path.
The file imports only the standard library, so that the keeper starts quickly and needs little memory.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

# The path in a socket's address has at most 104 bytes on macOS and 108 on Linux, including the final zero.
SOCKET_PATH_BYTES_MAX = 100
RECORD = "server.json"
LOG = "server.log"
CLIENT_NAME = "rq-core-keeper"


def keep_from_command_line() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--idle", type=float, required=True)
    parser.add_argument("--lock-fd", type=int, required=True)
    parser.add_argument("--foreground", action="store_true")
    options = parser.parse_args()
    if not options.foreground:
        leave_the_starter()
    return keep(options.directory, options.binary, options.idle, options.lock_fd)


def leave_the_starter() -> None:
    """Detach this process from the process that started it (the starter), so that this process survives Ctrl-C in the
    starter and the starter's end.
    """
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")


def keep(directory: Path, binary: str, idle_s: float, lock_fd: int) -> int:
    """Run the server until it ends, and return its exit status. A signal, or `idle_s` seconds without clients, end the
    server."""
    forget_last_run(directory)
    with socket_directory() as place:
        path = place / "s.sock"
        server: subprocess.Popen[bytes] | None = None
        early: list[int] = []

        def end(number: int, _frame: FrameType | None) -> None:
            if server is None:
                early.append(number)
            else:
                server.terminate()

        # Before the server starts: if a signal ended this process just after the start, the server would run on alone.
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        # The server inherits the lock, which is held while either of the two processes lives: so a second server can
        # never open the same data, even after this process was killed. The server has its own process group: a Ctrl-C
        # that reached it just after our signal would make it exit at once, with status 1 and without its last second on
        # disk.
        server = subprocess.Popen(
            [binary, *arguments(directory, path)],
            stdin=subprocess.DEVNULL,
            pass_fds=(lock_fd,),
            process_group=0,
        )
        if early:
            server.terminate()
        write_record(directory, {"socket": str(path), "pid": server.pid, "keeper_pid": os.getpid()})
        code = watch(server, path, idle_s)
        (directory / RECORD).unlink(missing_ok=True)
        return code


def arguments(directory: Path, path: Path) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(path),
        "unixsocketperm": "700",
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "logfile": str(directory / LOG),
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]


@contextlib.contextmanager
def socket_directory() -> Iterator[Path]:
    """Yield a new private directory with a path that is short enough for the server's socket. Remove the directory
    after the block.
    """
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) + len("/rqc-12345678/s.sock") > SOCKET_PATH_BYTES_MAX:
        base = "/tmp"  # noqa: S108 - mkdtemp makes a private directory in it
    place = Path(tempfile.mkdtemp(prefix="rqc-", dir=base))
    try:
        yield place
    finally:
        remove_socket_directory(place)


def remove_socket_directory(place: Path) -> None:
    with contextlib.suppress(OSError):
        (place / "s.sock").unlink(missing_ok=True)
        place.rmdir()


def forget_last_run(directory: Path) -> None:
    """Remove the files that a killed keeper left: the record `server.json` and the socket."""
    record = directory / RECORD
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        remove_socket_directory(Path(json.loads(record.read_text())["socket"]).parent)
    record.unlink(missing_ok=True)


def write_record(directory: Path, record: dict[str, str | int]) -> None:
    """Replace the record `server.json` atomically, so that readers need no lock."""
    draft = directory / f"{RECORD}.new"
    draft.write_text(json.dumps(record))
    draft.replace(directory / RECORD)


def watch(server: subprocess.Popen[bytes], path: Path, idle_s: float) -> int:
    """Wait until the server has ended, and return its exit status. End the server after `idle_s` seconds without
    clients."""
    poll_s = min(30.0, idle_s / 4)
    seen: int | None = None
    deadline = time.monotonic() + idle_s
    connection: socket.socket | None = None
    while True:
        try:
            return server.wait(timeout=poll_s)
        except subprocess.TimeoutExpired:
            pass
        try:
            if connection is None:
                connection = connect_to(path)
            clients, connections = client_counts(connection)
        except (OSError, ValueError):
            # A server that is still loading, or too busy to answer, is not idle.
            if connection is not None:
                connection.close()
            connection = None
            deadline = time.monotonic() + idle_s
            continue
        # Our own connection counts as one client; a client that came and left between two polls shows in the total.
        if clients > 1 or connections != seen:
            seen = connections
            deadline = time.monotonic() + idle_s
        elif time.monotonic() >= deadline:
            server.terminate()


def connect_to(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(5)
        connection.connect(str(path))
        # By the name, `server_status` does not count this connection as a client.
        connection.sendall(f"CLIENT SETNAME {CLIENT_NAME}\r\n".encode())
        connection.recv(1024)
    except BaseException:
        connection.close()
        raise
    return connection


def client_counts(connection: socket.socket) -> tuple[int, int]:
    """Return the number of clients that are connected now, and the number that have connected since the server's start.

    Both numbers include the keeper.
    """
    connection.sendall(b"INFO clients stats\r\n")
    reply = b""
    while not reply.endswith(b"\r\n") or (size := announced(reply)) is None or len(reply) < size:
        chunk = connection.recv(65536)
        if not chunk:
            raise ConnectionError("the server closed the connection")
        reply += chunk
        if not reply.startswith(b"$"):
            raise ValueError(reply.decode(errors="replace"))
    lines = [line.partition(b":") for line in reply.splitlines()]
    facts = {name: value for name, _, value in lines}
    return int(facts[b"connected_clients"]), int(facts[b"total_connections_received"])


def announced(reply: bytes) -> int | None:
    """Return the length of a whole bulk reply in bytes, from its first line. Return None if that line is incomplete."""
    head, line_end, _ = reply.partition(b"\r\n")
    return len(head) + 2 + int(head[1:]) + 2 if line_end else None


if __name__ == "__main__":
    sys.exit(keep_from_command_line())
