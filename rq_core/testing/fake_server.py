"""A fake Redis server in this process: the Lua scripts in a form that fakeredis can run, and the server's clients."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import redis

from rq_core.app.clients import Connections
from rq_core.connections.async_client import AsyncClient
from rq_core.connections.client import Client
from rq_core.connections.connection import Connection
from rq_core.connections.pool import Pool
from rq_core.connections.redis_errors import own_words
from rq_core.connections.transport import SOCKET_TIMEOUT_S, Hear, PoolTransport
from rq_core.connections.wait_thread import Waiter
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Patience, ReplyError
from rq_core.protocol.operations import Operations
from rq_core.protocol.reads.wait_schedule import JobWait, Nothing
from rq_core.scripts.header import Variant
from rq_core.scripts.plain import BY_DIGEST, in_full
from rq_core.scripts.script import Script, build_script

_REPLID: Final = """--[[ replid: the one history of a fake server, which has no INFO in scripts. ]]

local function server_replid()
  return string.rep('0', 40)
end
"""

_CLOCK: Final = """--[[ clock: the server's time, and what the test has added to it.

Keys: meta
]]
local function clock_ms()
  local time = redis.call('TIME')
  local added = redis.call('HGET', meta, 'test_clock_ms') or 0
  local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(added)
  return now, string.format('%.0f', now)
end
"""


_DEFINITION_DIGEST: Final = """--[[ definition_digest: makes short digests, where scripts have no redis.sha1hex. ]]

local function digest_of(text)
  local sum = 5381
  for at = 1, #text do
    sum = (sum * 33 + text:byte(at)) % 4294967296
  end
  return string.format('%08x', sum)
end

local function definition_digest(rule, job)
  return digest_of(rule .. job)
end

local function job_digest(job)
  return string.rep(digest_of(job), 4)
end
"""


@functools.cache
def fake_variant() -> Variant:
    """Return the changes to the Lua scripts that fakeredis needs."""
    includes = {"replid": _REPLID, "clock": _CLOCK, "definition_digest": _DEFINITION_DIGEST}
    return Variant(includes=includes, shebang=False)


@functools.cache
def fake_script(name: str) -> Script:
    """Return the Lua script of this name in the form that fakeredis can run."""
    return build_script(name, fake_variant())


class FakeConnections(Connections):
    """Starts a fakeredis server, and makes its clients. Raises ImportError without fakeredis[lua]."""

    def __init__(self, *, prefix: str) -> None:
        super().__init__("fake://", prefix=prefix)
        # The fake server answers at once, so a call does not block an event loop.
        self.warns = False
        try:
            import fakeredis

            # Without Lua, the error of fakeredis would only say that EVALSHA is unknown.
            import lupa  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "rq_core.testing runs on fakeredis with Lua: pip install 'fakeredis[lua]'"
            ) from error

        self._server = fakeredis.FakeServer()

    def make_client(self) -> Client:
        """Make a client of the fake server."""
        return Client(self.url, transport=FakeTransport(self._server), calls=self._calls())

    def make_async_client(self) -> AsyncClient:
        """Make a client of the fake server for the running event loop."""
        transport = FakeAsyncTransport(self._server)
        return AsyncClient(self.url, transport=transport, calls=self._calls())

    def make_waiter(self) -> Waiter:
        """Make the object that waits for the ends of jobs. It reads each job only once, since jobs run only when the
        test calls ``drain``.
        """
        return _FakeWaiter(self.make_client())

    def _calls(self) -> Operations:
        # The server is a dictionary, so there is no outage to wait for.
        patience = Patience(unsent=0, unknown=0)
        return Operations(
            Delivery(prefix=self.prefix, url=self.url, patience=patience, scripts=fake_script)
        )


class _FakeWaiter(Waiter):
    """Answers calls that wait for the end of a job on a fake server. It reads each job once, in the caller's thread,
    without waiting.
    """

    def begin(self, *waits: JobWait) -> None:
        """End each wait at once, with its job's present state."""
        for wait in waits:
            found = self._client.run(self._client.calls.endings.look(wait.queue, [wait.id]))
            wait.end(found.get(wait.id, Nothing.ALIVE))


class _FakeConnection(Connection):
    """A connection to a fakeredis server. It has no socket, so redis-py's methods send and receive."""

    def is_ready(self) -> bool:
        """Return whether the connection is open."""
        return self.is_connected

    def connect(self, within: float | None = None) -> None:  # noqa: ARG002 - it is there at once
        """Open the connection with redis-py."""
        self._made.connect()
        self._socket = self._made

    def send(self, data: bytes) -> None:
        """Send packed commands to the fake server."""
        self._made.send_packed_command([data])

    def receive(self, count: int, replies: list[Any]) -> None:
        """Append ``count`` replies to ``replies``. An error from the fake server becomes a ReplyError."""
        for _ in range(count):
            try:
                replies.append(self._made.read_response())
            except redis.ResponseError as error:
                replies.append(ReplyError(own_words(error)))

    def wait_for(self, seconds: float | None) -> None:
        """Do nothing, since a fake server answers at once."""


class FakeTransport(PoolTransport):
    """A blocking transport to a fakeredis server, on redis-py's connections."""

    def __init__(self, server: Any) -> None:
        import fakeredis

        fake = fakeredis.FakeRedis(server=server, decode_responses=True, protocol=2)
        self._answer_within = SOCKET_TIMEOUT_S
        self._pool = Pool(
            fake.connection_pool, wait=SOCKET_TIMEOUT_S, make_connection=_FakeConnection
        )

    def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        """Send commands in the form that fakeredis knows, and return their replies. See Transport.exchange."""
        known = [_known(command) for command in commands]
        return _with_info(known, super().exchange(known, *how))


class FakeAsyncTransport:
    """A transport for asyncio to a fakeredis server. Its methods await nothing, since the server is in this process."""

    one_slot = False

    def __init__(self, server: Any) -> None:
        self._transport = FakeTransport(server)

    async def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        """Send commands, and return their replies. See Transport.exchange."""
        return self._transport.exchange(commands, *how)

    async def block(self, command: Sequence[Any], seconds: float, hear: Hear = None) -> Any:
        """Send a blocking command, call ``hear`` with its reply, and return the reply. See AsyncTransport.block."""
        reply = self._transport.block(command, seconds)
        if hear is not None:
            hear(reply)
        return reply

    def pool_of(self, key: str) -> None:
        """Return None, because the server is in this process: no transport goes to it over the network."""

    def place(self, key: str) -> object:
        """Return an object that identifies the server of ``key``. See Transport.place."""
        return self._transport.place(key)

    async def close(self) -> None:
        """Close all connections."""
        self._transport.close()


def _known(command: Sequence[Any]) -> Sequence[Any]:
    """Return a command in a form that fakeredis knows: EVAL in place of EVAL_RO and EVALSHA_RO, and a script without
    its ``#!`` line."""
    if command[0] == BY_DIGEST:
        command = in_full(command)
    if command[0] not in ("EVAL", "EVAL_RO"):
        return command
    script = command[1]
    return ["EVAL", script.partition("\n")[2] if script.startswith("#!") else script, *command[2:]]


def _with_info(commands: Sequence[Sequence[Any]], replies: list[Any]) -> list[Any]:
    """Return the replies, with a made-up reply to each INFO command, which fakeredis lacks."""
    return [
        "redis_version:7.0.0" if command[0] == "INFO" else reply
        for command, reply in zip(commands, replies, strict=True)
    ]
