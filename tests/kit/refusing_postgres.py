"""A server that refuses each connection, as PostgreSQL does, with a chosen error code and text."""

from __future__ import annotations

import contextlib
import socketserver
import struct
import threading
from collections.abc import Iterator

STARTING = ("57P03", "the database system is starting up")
FULL = ("53300", "sorry, too many clients already")


@contextlib.contextmanager
def refusing_postgres(code: str, says: str) -> Iterator[str]:
    """Run the server during the block, and yield the URL of a database on it."""

    class Refusal(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while True:
                size = self.request.recv(4)
                if len(size) < 4:
                    return
                asked = self.request.recv(struct.unpack("!I", size)[0] - 4)
                if struct.unpack("!I", asked[:4])[0] not in (80877103, 80877104):
                    break
                self.request.sendall(b"N")  # No encryption.
            fields = (("S", "FATAL"), ("V", "FATAL"), ("C", code), ("M", says))
            text = b"".join(f"{name}{value}".encode() + b"\0" for name, value in fields) + b"\0"
            self.request.sendall(b"E" + struct.pack("!I", len(text) + 4) + text)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusal) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"postgresql://127.0.0.1:{server.server_address[1]}/x"
        finally:
            server.shutdown()
            thread.join()
