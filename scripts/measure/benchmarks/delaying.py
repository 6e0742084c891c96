"""A TCP proxy that delays all data by a constant time in each direction, and so imitates a server that is far away.

It runs in a process of its own, so that no other Python code delays the data further. It keeps the order of the data,
and sends each piece at once (without Nagle's algorithm). It does not delay the opening of a connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from selectors import EVENT_READ, EVENT_WRITE, SelectSelector
from urllib.parse import urlsplit

READ = 65_536
PINGS = 200
_SET_TIMER_SLACK = 29
"""PR_SET_TIMERSLACK of prctl(2). By default, Linux may end a sleep 50 µs late, which is a delay in each direction."""


@contextlib.contextmanager
def delayed(url: str, delay_s: float) -> Iterator[str]:
    """Run a proxy to the server at ``url`` during the block, and yield the proxy's URL.

    Each direction takes ``delay_s`` seconds longer than without the proxy.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 6379
    with subprocess.Popen(
        [sys.executable, str(Path(__file__)), host, str(port), str(delay_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        # The proxy ends when its input ends: also if this process is killed.
        assert process.stdin is not None
        assert process.stdout is not None
        door = process.stdout.readline().strip()
        before, at, _ = parts.netloc.rpartition("@")
        yield parts._replace(netloc=f"{before}{at}127.0.0.1:{door}").geturl()


def ping_ms(url: str, count: int = PINGS) -> float:
    """Return the median time (ms) of a PING on a bare socket: the round trip to the server without a client library."""
    parts = urlsplit(url)
    took = []
    with socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379)) as end:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            began = time.perf_counter()
            end.sendall(b"PING\r\n")
            # A server with a password answers with an error, which takes as long.
            end.recv(READ)
            took.append(1e3 * (time.perf_counter() - began))
    return statistics.median(took)


class _Side:
    """One end of a relayed connection. ``other`` is the end to which its data go."""

    other: _Side

    def __init__(self, end: socket.socket) -> None:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setblocking(False)
        self.end = end
        self.unsent = bytearray()
        """The data that are due but not sent yet, because the receiver's buffer is full."""
        self.is_over = False
        """True if no data will follow: the other end has closed the connection."""


class Relay:
    """Relays connections from a listening socket to a server, on the calling thread."""

    def __init__(self, listener: socket.socket, target: tuple[str, int], delay_s: float) -> None:
        self._listener = listener
        self._target = target
        self._delay_s = delay_s
        self._selector = SelectSelector()
        """The selector. Only this kind has timeouts that are exact to the microsecond. It can watch 1,024 sockets."""
        self._line: deque[tuple[float, _Side, bytes]] = deque()
        """The data under way: for each piece, the time at which it is due and the side that receives it. All delays are
        equal, so the pieces are in order of their times."""

    def run(self, until: int) -> None:
        """Relay data until the file descriptor ``until`` can be read, or has ended."""
        self._selector.register(self._listener, EVENT_READ)
        self._selector.register(until, EVENT_READ)
        while True:
            wait = max(0.0, self._line[0][0] - time.monotonic()) if self._line else None
            for key, events in self._selector.select(wait):
                if key.fileobj == until:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                    continue
                if events & EVENT_READ:
                    self._take(key.data)
                if events & EVENT_WRITE:
                    self._send(key.data)
            now = time.monotonic()
            while self._line and self._line[0][0] <= now:
                _, side, data = self._line.popleft()
                side.unsent += data
                side.is_over = not data
                self._send(side)

    def _accept(self) -> None:
        near = _Side(self._listener.accept()[0])
        try:
            far = _Side(socket.create_connection(self._target))
        except OSError:
            near.end.close()
            return
        near.other, far.other = far, near
        for side in (near, far):
            self._selector.register(side.end, EVENT_READ, side)

    def _take(self, side: _Side) -> None:
        if side.end.fileno() < 0:
            return  # Closed in this round.
        try:
            data = side.end.recv(READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._line.append((time.monotonic() + self._delay_s, side.other, data))
        if not data:
            # The end of a connection arrives as late as its data.
            self._selector.unregister(side.end)

    def _send(self, side: _Side) -> None:
        if side.end.fileno() < 0:
            return
        try:
            while side.unsent:
                del side.unsent[: side.end.send(side.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            side.unsent.clear()
            side.is_over = True
        if side.is_over and not side.unsent:
            self._close(side)
        elif side.end in self._selector.get_map():
            more = EVENT_WRITE if side.unsent else 0
            self._selector.modify(side.end, EVENT_READ | more, side)

    def _close(self, side: _Side) -> None:
        """Close both ends of a connection."""
        for each in (side, side.other):
            if each.end.fileno() >= 0:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(each.end)
                each.end.close()


def main() -> None:
    host, port, delay_s = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1, 0, 0, 0)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        print(listener.getsockname()[1], flush=True)
        Relay(listener, (host, int(port)), float(delay_s)).run(sys.stdin.fileno())


if __name__ == "__main__":
    # The benchmark ends it by closing its input; Ctrl-C in a terminal reaches both.
    try:
        main()
    except KeyboardInterrupt:
        os._exit(130)
