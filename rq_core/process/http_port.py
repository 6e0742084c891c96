"""A port that answers HTTP requests beside the main work of a process. It limits the number and the duration of
connections.

Each connection takes a file descriptor and a thread, and a slow or hostile client must not use them up. So the number
of connections is limited. Each connection has a deadline, which received bytes do not extend. If all connections are in
use, a new connection replaces the oldest one that has not sent its whole request.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final

from rq_core.errors import InvalidOption

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 16
"""Maximum number of connections at once, each with a descriptor and a thread."""
REQUEST_WAIT_S: Final = 5.0
"""Seconds after a connection's beginning within which its request must arrive."""
ANSWER_WAIT_S: Final = 10.0
"""Seconds after the request within which the client must have received the whole response."""
LOOK_EVERY_S: Final = 0.5
"""Seconds between two checks for connections whose deadline is over."""
ROOM_WAIT_S: Final = 1.0
"""Seconds for which a new connection waits until the connection that it replaces is closed."""


def parse_address(text: str, *, option: str = "health") -> tuple[str, int]:
    """Return the host and the port of an address: ``8080`` (host 127.0.0.1) or ``0.0.0.0:8080``. Raises InvalidOption
    for any other text."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65_535:
        raise InvalidOption.of(option, text, "must be PORT or HOST:PORT, like 8080 or 0.0.0.0:8080")
    return host or "127.0.0.1", int(port)


@dataclass(eq=False, slots=True)
class _Open:
    """The state of an open connection."""

    ends_at: float
    """The connection's deadline, in seconds of the monotonic clock."""
    asked: bool = False
    """True if the connection's request has arrived."""
    ended: bool = False
    """True if the server has shut the connection down. The connection's thread then closes the connection."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: dict[socket.socket, _Open] = {}
        """The open connections, the oldest first."""
        self._closed = threading.Condition()
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        super().__init__(found[0][4][:2], handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        # HTTPServer's own method resolves the host's name; without a name server, workers would wait for that.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - its base's
        # Usually a client that did not wait for its response, which is no error of the worker.
        log.debug("a request failed: %r", sys.exception())

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            # Without a free descriptor the connection stays in the backlog, and the server would retry without a pause.
            time.sleep(LOOK_EVERY_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - its base's
        with self._closed:
            if len(self._open) >= CONNECTIONS_MAX:
                slow = next((c for c, state in self._open.items() if not state.asked), None)
                if slow is not None:
                    self._end(slow)
                    self._closed.wait_for(
                        lambda: len(self._open) < CONNECTIONS_MAX, timeout=ROOM_WAIT_S
                    )
            room = len(self._open) < CONNECTIONS_MAX
            if room:
                self._open[request] = _Open(time.monotonic() + REQUEST_WAIT_S)
        return room

    def note_asked(self, request: socket.socket) -> None:
        """Note that a connection's request has arrived. From now on, the client has ANSWER_WAIT_S seconds to receive
        the response."""
        with self._closed:
            if (state := self._open.get(request)) is not None and not state.ended:
                state.asked, state.ends_at = True, time.monotonic() + ANSWER_WAIT_S

    def service_actions(self) -> None:
        now = time.monotonic()
        with self._closed:
            for connection, state in self._open.items():
                if now > state.ends_at and not state.ended:
                    self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        """Shut a connection down. The connection's thread then gets an error, and closes the connection."""
        self._open[connection].ended = True
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def close_request(self, request: Any) -> None:
        with self._closed:
            super().close_request(request)
            self._open.pop(request, None)
            self._closed.notify_all()


def _noting(handler: type[BaseHTTPRequestHandler]) -> type[BaseHTTPRequestHandler]:
    """Return a subclass of ``handler`` that calls the server's ``note_asked`` when a request has arrived."""

    class Noting(handler):  # type: ignore[misc, valid-type]
        def parse_request(self) -> bool:
            whole: bool = super().parse_request()
            self.server.note_asked(self.connection)
            return whole

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
            log.debug("%s", format % args)

    return Noting


class HttpPort:
    """Answers HTTP requests with ``handler``, on its own threads, until it is closed."""

    def __init__(
        self, address: str, handler: type[BaseHTTPRequestHandler], *, option: str = "health"
    ) -> None:
        """Listen at ``address``. ``option`` is the name of the option that errors show. Raises InvalidOption if the
        address is invalid, or the process cannot listen at it."""
        host, port = parse_address(address, option=option)
        try:
            self._server = _Server((host, port), _noting(handler))
        except OSError as error:
            raise InvalidOption.of(
                option,
                address,
                f"must be an address that this process can listen on ({error.strerror or error})",
            ) from error
        self.host = host
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(LOOK_EVERY_S,),
            name=f"rq-core-{option}",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering requests, and close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(REQUEST_WAIT_S)
