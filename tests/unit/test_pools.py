"""Connection pools. A connection is used again only if none of its replies can be lost or mistaken for another."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from rq_core.connections import pool
from rq_core.connections.cluster import AsyncClusterTransport
from rq_core.connections.routing import Node
from rq_core.connections.transport import AsyncPoolTransport, PoolTransport
from rq_core.protocol.engine.plan import Lost, Unsent
from tests.kit.forked import forked
from tests.kit.wait import wait_until, wait_until_async

KINDS = pytest.mark.parametrize("kind", [PoolTransport, AsyncPoolTransport])


async def value(given: Any) -> Any:
    """Return what a transport gives, and await it first if the transport is async."""
    return await given if inspect.isawaitable(given) else given


async def ask(transport: Any, *command: str) -> Any:
    (reply,) = await value(transport.exchange([command]))
    return reply


@KINDS
async def test_sequential_exchanges_share_a_connection(valkey_url: str, kind: type[Any]) -> None:
    transport = kind(valkey_url)

    ids = {await ask(transport, "CLIENT", "ID") for _ in range(3)}
    await value(transport.close())

    assert len(ids) == 1
    assert not transport._pool.busy


@KINDS
@pytest.mark.parametrize("how", ["ends it", "speaks unasked"])
async def test_a_pool_does_not_reuse_a_connection_that_is_closed_or_has_unread_data(
    valkey_url: str, kind: type[Any], how: str
) -> None:
    """A command on a closed connection would have an unknown outcome.

    An unread reply would be read as the reply to the next command.
    """
    transport = kind(valkey_url)
    before = await ask(transport, "CLIENT", "ID")
    (idle,) = transport._pool._idle
    if how == "ends it":
        with redis.Redis.from_url(valkey_url) as control:
            control.client_kill_filter(_id=before)
    else:
        await value(idle._made.send_command("ECHO", "nobody reads this"))

    def has_heard() -> bool:
        return not (idle.is_ready() if kind is PoolTransport else idle.is_ready)

    await wait_until_async(has_heard, "it has been heard")
    after = await ask(transport, "CLIENT", "ID")
    await value(transport.close())

    assert isinstance(after, int)
    assert after != before


@KINDS
async def test_the_pool_opens_at_most_max_connections(valkey_url: str, kind: type[Any]) -> None:
    transport = kind(f"{valkey_url}?max_connections=1", answer_within=0.3)
    taken = await value(transport._pool.take())

    refusal = await ask(transport, "PING")
    transport._pool.give_back(taken)

    assert isinstance(refusal, Unsent)
    assert "1 connection is in use, as many as the URL allows" in str(refusal)
    assert await ask(transport, "PING") == "PONG"
    await value(transport.close())


def test_threads_queue_for_a_connection(valkey_url: str) -> None:
    """Three threads share one connection. None gets the error that Redis does not answer."""
    transport = PoolTransport(f"{valkey_url}?max_connections=1", answer_within=60)
    taken = transport._pool.take()

    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(transport.exchange, [["ECHO", str(n)]]) for n in range(3)]
        wait_until(lambda: transport._pool._waiting == 3, "all wait")
        transport._pool.give_back(taken)

        assert [each.result(10) for each in asked] == [["0"], ["1"], ["2"]]
    assert transport._pool._idle == [taken]
    transport.close()


async def test_coroutines_queue_for_a_connection(valkey_url: str) -> None:
    """Coroutines get connections in the order of their requests. One that gives up does not delay the others."""
    transport = AsyncPoolTransport(f"{valkey_url}?max_connections=1", answer_within=60)
    taken = await transport._pool.take()
    order: list[int] = []

    async def echo(n: int) -> None:
        assert await transport.exchange([["ECHO", str(n)]]) == [str(n)]
        order.append(n)

    tasks = [asyncio.create_task(echo(n)) for n in range(5)]
    await wait_until_async(lambda: len(transport._pool._waiting) == 5, "all wait")
    tasks[1].cancel()
    transport._pool.give_back(taken)
    tasks[0].cancel()
    await asyncio.wait_for(asyncio.gather(*tasks[2:]), 10)

    assert order == [2, 3, 4]
    assert transport._pool._idle == [taken]
    assert not transport._pool.busy
    await asyncio.gather(*tasks, return_exceptions=True)
    await transport.close()


@pytest.mark.slow
@KINDS
async def test_a_caller_may_queue_for_a_connection_longer_than_the_timeout_of_an_answer(
    valkey_url: str, kind: type[Any]
) -> None:
    transport = kind(f"{valkey_url}?max_connections=1", answer_within=1)

    command = [["BLPOP", "nothing", "0.4"]]
    with ThreadPoolExecutor(5) as threads:
        asked = [
            asyncio.wrap_future(threads.submit(transport.exchange, command))
            if kind is PoolTransport
            else transport.exchange(command)
            for _ in range(5)
        ]

        assert await asyncio.gather(*asked) == [[None]] * 5
    await value(transport.close())


def test_closing_a_pool_does_not_interrupt_an_exchange_of_another_thread(valkey_url: str) -> None:
    """The close does not count as an outage in which replies are lost."""
    transport = PoolTransport(valkey_url)
    with ThreadPoolExecutor(1) as thread, redis.Redis.from_url(valkey_url) as control:
        asked = thread.submit(transport.exchange, [["BLPOP", "list", "10"]])
        wait_until(lambda: control.info("clients")["blocked_clients"], "it waits")
        transport.close()
        control.rpush("list", "1")

        assert asked.result() == [["list", "1"]]
    (left,) = transport._pool._idle
    assert not left.is_connected
    assert transport.exchange([["PING"]]) == ["PONG"]
    transport.close()


def test_a_forked_child_uses_its_own_connections(valkey_url: str) -> None:
    transport = PoolTransport(valkey_url)
    (before,) = transport.exchange([["CLIENT", "ID"]])

    of_child = forked(lambda: str(transport.exchange([["CLIENT", "ID"]])[0]))

    assert of_child.isdigit()
    assert of_child != str(before)
    assert transport.exchange([["CLIENT", "ID"]]) == [before]
    transport.close()


def test_threads_of_a_forked_child_use_no_connection_of_its_parent(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread of the child makes a call while another thread is still discarding the parent's connections."""
    transport = PoolTransport(valkey_url)
    (before,) = transport.exchange([["CLIENT", "ID"]])
    of_parent = transport._pool._idle[0]
    transport._pool._pid = -1
    asked: list[Any] = []
    other = threading.Thread(target=lambda: asked.extend(transport.exchange([["CLIENT", "ID"]])))

    def half_way() -> Any:
        if other.ident is None:
            other.start()
            other.join()
        return threading.Lock()

    monkeypatch.setattr(
        pool, "threading", SimpleNamespace(Lock=half_way, Condition=threading.Condition)
    )
    transport.exchange([["PING"]])
    other.join()
    of_parent.disconnect()
    transport.close()

    assert asked
    assert asked != [before]


@KINDS
async def test_a_connection_whose_handshake_was_interrupted_repeats_the_handshake(
    valkey_url: str, kind: type[Any]
) -> None:
    """redis-py regards the connection as connected. Without a new handshake it would use the wrong database."""
    transport = kind(valkey_url.replace("/0", "/3"))
    source = transport._pool._source
    broken = []

    class Breaking(source.connection_class):  # type: ignore[misc,name-defined]
        def on_connect_check_health(self, *how: Any, **more: Any) -> Any:
            if not broken:
                broken.append(self)
                raise RuntimeError("the connection was just reset")
            return super().on_connect_check_health(*how, **more)

    source.connection_class = Breaking
    try:
        refusal = await ask(transport, "PING")
    except RuntimeError as error:  # uvloop's error, and so no outage to threads.
        refusal = error
    found = await ask(transport, "CLIENT", "INFO")
    await value(transport.close())

    assert "just reset" in str(refusal)
    assert " db=3 " in found


async def test_a_connection_that_fails_to_close_does_not_keep_other_connections_open(
    valkey_url: str,
) -> None:
    transport = AsyncPoolTransport(valkey_url)
    first, second = await transport._pool.take(), await transport._pool.take()
    close = first.disconnect

    async def stumble(**_how: object) -> None:
        await close()
        raise RuntimeError("it stumbled")

    first.disconnect = stumble  # type: ignore[method-assign]
    for connection in (first, second):
        transport._pool.give_back(connection)

    with pytest.raises(RuntimeError, match="stumbled"):
        await transport.close()

    assert not second.is_ready


async def test_a_connection_that_opens_while_the_transport_closes_is_closed(
    valkey_url: str,
) -> None:
    transport = AsyncPoolTransport(valkey_url)
    begun, go_on = asyncio.Event(), asyncio.Event()
    source: Any = transport._pool._source

    class Slow(source.connection_class):  # type: ignore[misc]
        async def _connect(self) -> None:
            begun.set()
            await go_on.wait()
            await super()._connect()

    source.connection_class = Slow
    asked = asyncio.create_task(transport.exchange([["PING"]]))
    await begun.wait()
    await transport.close()
    go_on.set()

    assert await asked == ["PONG"]
    assert not any(connection.is_ready for connection in transport._pool._idle)


async def test_a_call_under_way_ends_when_the_transport_closes(valkey_url: str) -> None:
    """The call ends, although the watchdog of its connection has stopped."""
    transport = AsyncPoolTransport(valkey_url)
    asked = asyncio.create_task(transport.block(["BLPOP", "nothing", "0"], 60))
    await wait_until_async(lambda: transport._pool.busy, "it asks")
    await wait_until_async(
        lambda: any(connection._answer for connection in transport._pool.busy), "it waits"
    )

    await transport.close()

    with pytest.raises(Lost, match="closed on this side"):
        await asyncio.wait_for(asked, 5)


async def test_a_node_that_is_found_while_the_cluster_transport_closes_keeps_no_connection(
    valkey_url: str,
) -> None:
    cluster = AsyncClusterTransport(valkey_url.replace("redis://", "redis+cluster://"))
    await cluster.close()

    late = cluster._to(Node("127.0.0.1", urlsplit(valkey_url).port or 0))
    assert await late.exchange([["PING"]]) == ["PONG"]

    assert not any(connection.is_ready for connection in late._pool._idle)


async def test_a_node_whose_connections_fail_to_close_does_not_keep_other_nodes_open(
    valkey_url: str,
) -> None:
    cluster = AsyncClusterTransport(valkey_url.replace("redis://", "redis+cluster://"))
    (first,) = cluster._transports.values()
    second = cluster._transports[Node("the other", 0)] = AsyncPoolTransport(valkey_url)
    for transport in (first, second):
        assert await transport.exchange([["PING"]]) == ["PONG"]
    (connection,) = first._pool._idle
    close = connection.disconnect

    async def stumble() -> None:
        await close()
        raise RuntimeError("it stumbled")

    connection.disconnect = stumble  # type: ignore[method-assign]

    with pytest.raises(RuntimeError, match="stumbled"):
        await cluster.close()

    assert not any(connection.is_ready for connection in second._pool._idle)
