"""Connections are used again, but never one on which something might be lost or mixed up."""

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
from rq_core.connections.cluster import AsyncClusterWire
from rq_core.connections.routing import Node
from rq_core.connections.transport import AsyncPoolWire, PoolWire
from rq_core.protocol.engine.plan import Lost, Unsent
from tests.kit.forked import forked
from tests.kit.wait import wait_until, wait_until_async

KINDS = pytest.mark.parametrize("kind", [PoolWire, AsyncPoolWire])


async def value(given: Any) -> Any:
    """What a wire of either kind gives."""
    return await given if inspect.isawaitable(given) else given


async def ask(wire: Any, *command: str) -> Any:
    (reply,) = await value(wire.exchange([command]))
    return reply


@KINDS
async def test_one_connection_serves_one_exchange_after_another(
    valkey_url: str, kind: type[Any]
) -> None:
    wire = kind(valkey_url)

    ids = {await ask(wire, "CLIENT", "ID") for _ in range(3)}
    await value(wire.close())

    assert len(ids) == 1
    assert not wire._pool.busy


@KINDS
@pytest.mark.parametrize("how", ["ends it", "speaks unasked"])
async def test_a_connection_whose_server_does_what_no_command_asked_for_is_not_used_again(
    valkey_url: str, kind: type[Any], how: str
) -> None:
    """What is sent to an end would count as sent, and its outcome as unknown; an old reply would be taken for the next
    one's."""
    wire = kind(valkey_url)
    before = await ask(wire, "CLIENT", "ID")
    (idle,) = wire._pool._idle
    if how == "ends it":
        with redis.Redis.from_url(valkey_url) as control:
            control.client_kill_filter(_id=before)
    else:
        await value(idle._made.send_command("ECHO", "nobody reads this"))

    def has_heard() -> bool:
        return not (idle.is_ready() if kind is PoolWire else idle.is_ready)

    await wait_until_async(has_heard, "it has been heard")
    after = await ask(wire, "CLIENT", "ID")
    await value(wire.close())

    assert isinstance(after, int)
    assert after != before


@KINDS
async def test_no_more_connections_are_made_than_the_url_allows(
    valkey_url: str, kind: type[Any]
) -> None:
    wire = kind(f"{valkey_url}?max_connections=1", answer_within=0.3)
    taken = await value(wire._pool.take())

    refusal = await ask(wire, "PING")
    wire._pool.give_back(taken)

    assert isinstance(refusal, Unsent)
    assert "1 connection is in use, as many as there may be" in str(refusal)
    assert await ask(wire, "PING") == "PONG"
    await value(wire.close())


def test_threads_wait_in_line_for_a_connection(valkey_url: str) -> None:
    """Each beyond the hundredth was told that Redis does not answer, while it did."""
    wire = PoolWire(f"{valkey_url}?max_connections=1", answer_within=60)
    taken = wire._pool.take()

    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(wire.exchange, [["ECHO", str(n)]]) for n in range(3)]
        wait_until(lambda: wire._pool._waiting == 3, "all wait")
        wire._pool.give_back(taken)

        assert [each.result(10) for each in asked] == [["0"], ["1"], ["2"]]
    assert wire._pool._idle == [taken]
    wire.close()


async def test_coroutines_wait_in_line_for_a_connection(valkey_url: str) -> None:
    """In their order; one that gives up, even when it was its turn, holds up nobody."""
    wire = AsyncPoolWire(f"{valkey_url}?max_connections=1", answer_within=60)
    taken = await wire._pool.take()
    order: list[int] = []

    async def echo(n: int) -> None:
        assert await wire.exchange([["ECHO", str(n)]]) == [str(n)]
        order.append(n)

    tasks = [asyncio.create_task(echo(n)) for n in range(5)]
    await wait_until_async(lambda: len(wire._pool._waiting) == 5, "all wait")
    tasks[1].cancel()
    wire._pool.give_back(taken)
    tasks[0].cancel()
    await asyncio.wait_for(asyncio.gather(*tasks[2:]), 10)

    assert order == [2, 3, 4]
    assert wire._pool._idle == [taken]
    assert not wire._pool.busy
    await asyncio.gather(*tasks, return_exceptions=True)
    await wire.close()


@KINDS
async def test_a_line_that_moves_is_waited_in_for_longer_than_for_an_answer(
    valkey_url: str, kind: type[Any]
) -> None:
    wire = kind(f"{valkey_url}?max_connections=1", answer_within=1)

    command = [["BLPOP", "nothing", "0.4"]]
    with ThreadPoolExecutor(5) as threads:
        asked = [
            asyncio.wrap_future(threads.submit(wire.exchange, command))
            if kind is PoolWire
            else wire.exchange(command)
            for _ in range(5)
        ]

        assert await asyncio.gather(*asked) == [[None]] * 5
    await value(wire.close())


def test_closing_breaks_no_exchange_of_another_thread(valkey_url: str) -> None:
    """It counted as an outage, with replies that were lost, or were waited for in vain."""
    wire = PoolWire(valkey_url)
    with ThreadPoolExecutor(1) as thread, redis.Redis.from_url(valkey_url) as control:
        asked = thread.submit(wire.exchange, [["BLPOP", "list", "10"]])
        wait_until(lambda: control.info("clients")["blocked_clients"], "it waits")
        wire.close()
        control.rpush("list", "1")

        assert asked.result() == [["list", "1"]]
    (left,) = wire._pool._idle
    assert not left.is_connected
    assert wire.exchange([["PING"]]) == ["PONG"]
    wire.close()


def test_a_forked_child_speaks_on_connections_of_its_own(valkey_url: str) -> None:
    wire = PoolWire(valkey_url)
    (before,) = wire.exchange([["CLIENT", "ID"]])

    of_child = forked(lambda: str(wire.exchange([["CLIENT", "ID"]])[0]))

    assert of_child.isdigit()
    assert of_child != str(before)
    assert wire.exchange([["CLIENT", "ID"]]) == [before]
    wire.close()


def test_threads_of_a_forked_child_take_no_connection_of_its_parent(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that comes while another thread lets go of them."""
    wire = PoolWire(valkey_url)
    (before,) = wire.exchange([["CLIENT", "ID"]])
    of_parent = wire._pool._idle[0]
    wire._pool._pid = -1
    asked: list[Any] = []
    other = threading.Thread(target=lambda: asked.extend(wire.exchange([["CLIENT", "ID"]])))

    def half_way() -> Any:
        if other.ident is None:
            other.start()
            other.join()
        return threading.Lock()

    monkeypatch.setattr(
        pool, "threading", SimpleNamespace(Lock=half_way, Condition=threading.Condition)
    )
    wire.exchange([["PING"]])
    other.join()
    of_parent.disconnect()
    wire.close()

    assert asked
    assert asked != [before]


@KINDS
async def test_a_connection_whose_greeting_broke_off_is_greeted_again(
    valkey_url: str, kind: type[Any]
) -> None:
    """redis-py takes it for connected; it would speak to the wrong database."""
    wire = kind(valkey_url.replace("/0", "/3"))
    source = wire._pool._source
    broken = []

    class Breaking(source.connection_class):  # type: ignore[misc,name-defined]
        def on_connect_check_health(self, *how: Any, **more: Any) -> Any:
            if not broken:
                broken.append(self)
                raise RuntimeError("the connection was just reset")
            return super().on_connect_check_health(*how, **more)

    source.connection_class = Breaking
    try:
        refusal = await ask(wire, "PING")
    except RuntimeError as error:  # uvloop's error, and so no outage to threads.
        refusal = error
    found = await ask(wire, "CLIENT", "INFO")
    await value(wire.close())

    assert "just reset" in str(refusal)
    assert " db=3 " in found


async def test_one_connection_that_cannot_be_closed_keeps_none_open(valkey_url: str) -> None:
    wire = AsyncPoolWire(valkey_url)
    first, second = await wire._pool.take(), await wire._pool.take()
    close = first.disconnect

    async def stumble(**_how: object) -> None:
        await close()
        raise RuntimeError("it stumbled")

    first.disconnect = stumble  # type: ignore[method-assign]
    for connection in (first, second):
        wire._pool.give_back(connection)

    with pytest.raises(RuntimeError, match="stumbled"):
        await wire.close()

    assert not second.is_ready


async def test_a_connection_that_is_made_while_the_wire_closes_does_not_stay_open(
    valkey_url: str,
) -> None:
    wire = AsyncPoolWire(valkey_url)
    begun, go_on = asyncio.Event(), asyncio.Event()
    source: Any = wire._pool._source

    class Slow(source.connection_class):  # type: ignore[misc]
        async def _connect(self) -> None:
            begun.set()
            await go_on.wait()
            await super()._connect()

    source.connection_class = Slow
    asked = asyncio.create_task(wire.exchange([["PING"]]))
    await begun.wait()
    await wire.close()
    go_on.set()

    assert await asked == ["PONG"]
    assert not any(line.is_ready for line in wire._pool._idle)


async def test_a_call_under_way_ends_when_the_wire_closes(valkey_url: str) -> None:
    """Its reply was waited for without an end: the watchdog went with the connection."""
    wire = AsyncPoolWire(valkey_url)
    asked = asyncio.create_task(wire.block(["BLPOP", "nothing", "0"], 60))
    await wait_until_async(lambda: wire._pool.busy, "it asks")
    await wait_until_async(lambda: any(line._answer for line in wire._pool.busy), "it waits")

    await wire.close()

    with pytest.raises(Lost, match="closed on this side"):
        await asyncio.wait_for(asked, 5)


async def test_a_node_that_is_found_while_a_cluster_is_closed_keeps_no_connection(
    valkey_url: str,
) -> None:
    cluster = AsyncClusterWire(valkey_url.replace("redis://", "redis+cluster://"))
    await cluster.close()

    late = cluster._to(Node("127.0.0.1", urlsplit(valkey_url).port or 0))
    assert await late.exchange([["PING"]]) == ["PONG"]

    assert not any(line.is_ready for line in late._pool._idle)


async def test_a_node_whose_connections_cannot_be_closed_keeps_no_other_node_open(
    valkey_url: str,
) -> None:
    cluster = AsyncClusterWire(valkey_url.replace("redis://", "redis+cluster://"))
    (first,) = cluster._wires.values()
    second = cluster._wires[Node("the other", 0)] = AsyncPoolWire(valkey_url)
    for wire in (first, second):
        assert await wire.exchange([["PING"]]) == ["PONG"]
    (line,) = first._pool._idle
    close = line.disconnect

    async def stumble() -> None:
        await close()
        raise RuntimeError("it stumbled")

    line.disconnect = stumble  # type: ignore[method-assign]

    with pytest.raises(RuntimeError, match="stumbled"):
        await cluster.close()

    assert not any(line.is_ready for line in second._pool._idle)
