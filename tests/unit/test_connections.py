"""Exchanges on a connection of redis-py. Each command gets its own reply, and never the reply of another exchange."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import hiredis
import pytest
import redis
import redis.asyncio
import uvloop

from rq_core.connections import connection
from rq_core.connections.transport import AsyncPoolTransport, PoolTransport
from rq_core.protocol.engine.plan import Lost, ReplyError
from tests.kit.door import Door
from tests.kit.wait import wait_until_async

Answer = Callable[[Sequence[bytes]], bytes | None]
"""A function that returns the server's answer to a command, or None if the server does not answer."""


@contextlib.asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[str]:
    """Yield the URL of a server that answers the handshake, and then sends the test's replies."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands = hiredis.Reader()
        while data := await reader.read(65_536):
            commands.feed(data)
            while command := commands.gets():
                said = b"+OK\r\n" if command[0] == b"CLIENT" else answer(command)
                writer.write(said or b"")

    door = Door(socket.create_server(("127.0.0.1", 0)), serve)
    try:
        yield f"redis://127.0.0.1:{door.port}/0"
    finally:
        await door.shut()


def _echo(command: Sequence[bytes]) -> bytes:
    return b"+" + command[0] + b"\r\n"


async def test_redis_py_has_the_internals_that_rq_core_uses(valkey_url: str) -> None:
    """A new version of redis-py may fail this test. Then change rq_core/connections/connection.py."""
    direct = redis.ConnectionPool.from_url(valkey_url).get_connection()
    waiting: Any = await redis.asyncio.ConnectionPool.from_url(valkey_url).get_connection()

    found = [
        callable(getattr(connection.socket_of(direct), name, None))
        for name in ("sendall", "recv", "settimeout", "fileno")
    ]
    transport = connection.transport_of(waiting)
    direct.disconnect()
    await waiting.disconnect()

    assert all(found), "redis.Connection keeps its socket elsewhere"
    assert isinstance(transport, asyncio.Transport), "redis.asyncio.Connection has another writer"


async def test_a_push_message_is_not_taken_for_a_reply(valkey_url: str) -> None:
    """Checks a push message between two exchanges, and one within an exchange."""
    url = f"{valkey_url}?protocol=3"
    waiting, direct = AsyncPoolTransport(url), PoolTransport(url)
    read = [["SET", "key", "1"], ["GET", "key"]]
    tracking = [["CLIENT", "TRACKING", "ON"], ["GET", "key"], ["SET", "key", "2"], ["GET", "key"]]

    for transport in (waiting, direct):
        for _ in range(3):
            commands = [*tracking, *read, ["CLIENT", "ID"]]
            asked = transport.exchange(commands)
            got = await asked if isinstance(transport, AsyncPoolTransport) else asked

            assert got[2:6] == ["OK", "2", "OK", "1"]
    _, number = await waiting.exchange([["GET", "key"], ["CLIENT", "ID"]])
    (connection,) = waiting._pool._idle
    came: list[bytes] = []
    take = connection.data_received
    connection.data_received = lambda data: (came.append(data), take(data))[1]  # type: ignore[method-assign]
    with redis.Redis.from_url(valkey_url) as other:
        other.set("key", "3")
    await wait_until_async(lambda: came, "the message has come")

    assert await waiting.exchange([["GET", "key"], ["CLIENT", "ID"]]) == ["3", number]
    await waiting.close()
    direct.close()


async def test_the_replies_false_and_none_and_empty_are_returned_unchanged(valkey_url: str) -> None:
    commands = [["EVAL", "redis.setresp(3) return false", 0], ["GET", "none"], ["ECHO", ""]]
    url = f"{valkey_url}?protocol=3"
    waiting, direct = AsyncPoolTransport(url), PoolTransport(url)

    assert await waiting.exchange(commands) == [False, None, ""]
    assert direct.exchange(commands) == [False, None, ""]
    await waiting.close()
    direct.close()


async def test_an_error_is_returned_in_the_place_of_its_reply_in_a_pipeline(
    valkey_url: str,
) -> None:
    """The error keeps its code, except for the code ERR. Each later command gets its own reply."""
    commands = [
        ["ECHO", "1"],
        ["EVALSHA", "0" * 40, 0],
        ["NO"],
        ["HGET", "text", "f"],
        ["ECHO", "2"],
    ]
    waiting, direct = AsyncPoolTransport(valkey_url), PoolTransport(valkey_url)
    direct.exchange([["SET", "text", "x"]])

    for got in (await waiting.exchange(commands), direct.exchange(commands)):
        assert [got[0], got[4]] == ["1", "2"]
        assert all(type(reply) is ReplyError for reply in got[1:4])
        assert [str(reply).split()[0] for reply in got[1:4]] == ["NOSCRIPT", "unknown", "WRONGTYPE"]
    await waiting.close()
    direct.close()


async def test_a_cancelled_exchange_ends_its_connection(valkey_url: str) -> None:
    """The replies of the cancelled exchange will still arrive. The next exchange must not read them."""
    transport = AsyncPoolTransport(valkey_url)
    (before,) = await transport.exchange([["CLIENT", "ID"]])
    asking = asyncio.create_task(transport.exchange([["BLPOP", "nothing", "0.2"], ["ECHO", "1"]]))
    await wait_until_async(lambda: transport._pool.busy, "it asks")

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    after, said = await transport.exchange([["CLIENT", "ID"], ["ECHO", "2"]])
    await transport.close()

    assert after != before
    assert said == "2"


async def test_replies_that_arrived_before_an_outage_are_returned() -> None:
    """The client drops all later replies, and does not use the connection again."""
    asked: list[bytes] = []

    def answer(command: Sequence[bytes]) -> bytes | None:
        asked.append(command[0])
        return None if asked[-2:-1] == [b"SILENT"] or asked[-1] == b"SILENT" else _echo(command)

    async with server(answer) as url:
        transport = AsyncPoolTransport(url, answer_within=60)
        asking = asyncio.create_task(transport.exchange([["ONE"], ["SILENT"], ["THREE"]]))
        await wait_until_async(
            lambda: (
                len(asked) == 3 and any(connection.replies for connection in transport._pool.busy)
            ),
            "all have been asked, and one was answered",
        )
        (connection,) = transport._pool.busy
        connection._deadline = 0.0
        connection._look()  # The time of the others is over.
        one, two, three = await asking
        again = await transport.exchange([["FOUR"]])
        await transport.close()

    assert one == "ONE"
    assert str(two) == str(three) == "no reply for 60 s"
    assert isinstance(two, Lost)
    assert isinstance(three, Lost)
    assert again == ["FOUR"]
    assert asked == [b"ONE", b"SILENT", b"THREE", b"FOUR"]


async def test_each_reply_of_a_pipeline_may_take_the_whole_timeout() -> None:
    """The replies arrive one by one. Together they may take longer than one timeout."""
    loop = asyncio.get_running_loop()

    async with server(_echo) as url:
        transport = AsyncPoolTransport(url, answer_within=60)
        await transport.exchange([["ONE"]])
        (connection,) = transport._pool._idle
        answer = connection.ask(b"*1\r\n$3\r\nTWO\r\n", 2, 60)
        first = connection._deadline
        await wait_until_async(lambda: connection.replies == ["TWO"], "the first of them is there")
        later = connection._deadline
        connection.data_received(b"+three\r\n")
        await answer
        await transport.close()

    assert first < later <= loop.time() + 60


async def test_a_short_timeout_after_a_long_timeout_is_respected() -> None:
    """A connection has one timer. The second exchange must set it to an earlier time."""
    async with server(lambda command: None if command[0] == b"SILENT" else b"+OK\r\n") as url:
        transport = AsyncPoolTransport(url, answer_within=0.5)
        await transport.block(["WAIT"], 3600)
        (connection,) = transport._pool._idle
        long = connection._watchdog
        (lost,) = await asyncio.wait_for(transport.exchange([["SILENT"]]), 10)
        await transport.close()

    assert long is not None
    assert long.cancelled()
    assert isinstance(lost, Lost)


async def test_many_exchanges_share_a_timer(valkey_url: str) -> None:
    """A timer for each exchange would cost as much as the exchange itself."""
    transport = AsyncPoolTransport(valkey_url)
    await transport.exchange([["PING"]])
    (connection,) = transport._pool._idle
    timer = connection._watchdog
    for _ in range(5):
        await transport.exchange([["PING"]])

    assert timer is not None
    assert connection._watchdog is timer
    await transport.close()
    assert timer.cancelled()


@pytest.mark.parametrize("said", [b"?what\r\n", b"+ONE\r\n+TWO\r\n"])
async def test_an_invalid_reply_ends_the_connection(said: bytes) -> None:
    """The client cannot know the meaning of the bytes after the invalid reply."""
    async with server(lambda command: said if command[0] == b"ODD" else b"+OK\r\n") as url:
        transport = AsyncPoolTransport(url, answer_within=10)
        (odd,) = await transport.exchange([["ODD"]])
        idle = [connection.is_ready for connection in transport._pool._idle]
        after = await transport.exchange([["EVEN"]])
        await transport.close()

    assert not any(idle)
    assert after == ["OK"]
    assert odd == "ONE" or isinstance(odd, Lost)


async def test_the_listener_of_a_connection_runs_before_the_caller_that_waits_for_the_reply(
    valkey_url: str,
) -> None:
    """The listener of a worker handles wake tokens. The caller continues one round of the event loop later."""
    transport = AsyncPoolTransport(valkey_url)
    await transport.exchange([["RPUSH", "list", "1"], ["SET", "text", "x"]])
    heard: list[Any] = []
    order: list[str] = []

    def hear(reply: Any) -> None:
        heard.append(reply)
        order.append("heard")
        asyncio.get_running_loop().call_soon(order.append, "a round later")

    found = await transport.block(["BLPOP", "list", 1], 1, hear)
    order.append("waited")
    with pytest.raises(ReplyError):
        await transport.block(["BLPOP", "text", 1], 1, hear)
    await transport.exchange([["PING"]])
    await transport.close()

    assert found == ["list", "1"]
    assert order[:3] == ["heard", "a round later", "waited"]
    assert [type(reply) for reply in heard] == [list, ReplyError]


async def test_an_incomplete_push_message_between_commands_ends_the_connection() -> None:
    """The second half of the message would arrive after the next command, and be read as the reply to it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(b"+OK\r\n" * (data.count(b"CLIENT") + data.count(b"SELECT")))
            if b"ONE" in data:
                writer.write(b"$3\r\none\r\n")
                await writer.drain()
                await asyncio.sleep(0)
                idle.set()
                await asked_nothing.wait()
                writer.write(b"+unask")
            if b"TWO" in data:
                writer.write(b"ed\r\n$3\r\ntwo\r\n")
        writer.close()

    idle, asked_nothing = asyncio.Event(), asyncio.Event()
    door = Door(socket.create_server(("127.0.0.1", 0)), serve)
    transport = AsyncPoolTransport(f"redis://127.0.0.1:{door.port}/0")
    assert await transport.exchange([["ECHO", "ONE"]]) == ["one"]
    (connection,) = transport._pool._idle
    await idle.wait()
    asked_nothing.set()
    await wait_until_async(lambda: not connection.is_ready, "the connection is ended")
    asked_nothing.clear()

    assert (await transport.exchange([["ECHO", "TWO"]]))[0] != "unasked"
    await transport.close()
    await door.shut()


def test_a_command_can_be_sent_while_a_uvloop_timer_is_about_to_fire(valkey_url: str) -> None:
    """The timer was set less than half a millisecond before its time. Uvloop does not know the time of such a timer."""

    async def exchanges() -> Any:
        transport = AsyncPoolTransport(valkey_url)
        await transport.exchange([["PING"]])
        (connection,) = transport._pool._idle
        connection._deadline = asyncio.get_running_loop().time()
        connection._watch()
        found = await transport.exchange([["ECHO", "one"]])
        await transport.close()
        return found

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(exchanges()) == ["one"]
