"""A TCP relay that can lose everything without a word, as a network does that forgets its connections."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from types import TracebackType
from typing import Self


class BlackHole:
    """Relays connections to a server on loopback until ``swallow``; from then on nothing gets through.

    Connections that were there then stay open and dead for ever, also after ``heal``: nobody ends them, so only a
    deadline of their users' own can. Those that are made while it swallows connect, and are dead as well.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._dead: list[socket.socket] = []
        self._swallows = False
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="black-hole")
        self._thread.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def swallow(self) -> None:
        with self._lock:
            self._swallows = True
            for key in list(self._selector.get_map().values()):
                if key.data is not None:
                    self._forget(key.fileobj)  # type: ignore[arg-type]

    def heal(self) -> None:
        with self._lock:
            self._swallows = False

    def _forget(self, end: socket.socket) -> None:
        self._selector.unregister(end)
        self._dead.append(end)

    def _run(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(timeout=0.02):
                with self._lock:
                    if key.data is None:
                        self._accept()
                    elif key.fd in self._selector.get_map():
                        self._relay(key.fileobj, key.data)  # type: ignore[arg-type]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            near, _ = self._listener.accept()
            if self._swallows:
                self._dead.append(near)
                return
            self._connect(near)

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            data = source.recv(65536)
            if data:
                sink.sendall(data)
                return
        except OSError:
            pass
        for end in (source, sink):
            self._selector.unregister(end)
            end.close()

    def _connect(self, near: socket.socket) -> None:
        """Take a connection on; one that the server refuses ends at once, as it would without a relay."""
        try:
            far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
        except OSError:
            near.close()
            return
        self._selector.register(near, selectors.EVENT_READ, far)
        self._selector.register(far, selectors.EVENT_READ, near)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        for end in self._dead:
            end.close()
        self._selector.close()
