"""The proxy for tests. Each of its modes does to connections what its name says."""

from __future__ import annotations

import contextlib
import functools
import gc
import socket
import time
import warnings
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.kit import proxy
from tests.kit.proxy import Mode, Proxy
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until


@pytest.fixture
def between(valkey: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setattr(proxy, "SHARE", 1.0)
    with Proxy(valkey.port) as made:
        yield made


@pytest.fixture
def near(between: Proxy) -> Iterator[redis.Redis]:
    """Yield a client that reaches the server through the proxy."""
    with redis.Redis.from_url(
        between.url, retry=Retry(NoBackoff(), 0), socket_timeout=2, protocol=2
    ) as client:
        client.ping()
        yield client


def test_the_proxy_drops_the_reply_of_a_command_that_was_carried_out(
    between: Proxy, near: redis.Redis, valkey: RedisServer
) -> None:
    with between.doing(Mode.DROP_REPLY), pytest.raises(redis.ConnectionError):
        near.incr("n")

    assert between.taken == 1
    assert near.get("n") == b"1"


@pytest.mark.parametrize("mode", [Mode.DROP_REQUEST, Mode.RESET])
def test_the_proxy_drops_a_command_before_it_is_carried_out(
    mode: Mode, between: Proxy, near: redis.Redis
) -> None:
    with between.doing(mode), pytest.raises(redis.ConnectionError):
        near.incr("n")

    assert near.get("n") is None


@pytest.mark.slow
def test_the_proxy_sends_a_stalled_command_when_the_stall_ends(
    between: Proxy, near: redis.Redis, valkey: RedisServer
) -> None:
    with between.doing(Mode.STALL), pytest.raises(redis.TimeoutError):
        near.incr("n")
    with valkey.client() as direct:
        wait_until(lambda: direct.get("n") == b"1", "it was carried out")


def test_a_proxy_that_slices_or_delays_bytes_does_not_change_them(
    between: Proxy, near: redis.Redis
) -> None:
    for mode in (Mode.SLICE, Mode.DELAY):
        with between.doing(mode):
            near.set("k", "v" * 3_000)
            assert near.get("k") == b"v" * 3_000

    assert between.taken >= 8


def test_connections_through_a_black_hole_of_the_proxy_stay_open_without_answers(
    between: Proxy, valkey: RedisServer
) -> None:
    """The client gets neither an answer nor an error, as if its network had forgotten the connection."""
    port = int(between.url.rpartition(":")[2].removesuffix("/0"))
    connect = functools.partial(socket.create_connection, ("127.0.0.1", port), timeout=5)
    with connect() as old:
        assert ask(old) == b":1\r\n"
        with between.doing(Mode.BLACK_HOLE):
            young = connect()
            for each in (old, young):
                each.sendall(b"INCR n\r\n")
            wait_until(lambda: between.taken == 2, "both are swallowed")
        with young, connect() as new:
            assert ask(new) == b":2\r\n"
            for dead in (old, young):
                dead.settimeout(0.05)
                with pytest.raises(TimeoutError):
                    ask(dead)
            assert ask(new) == b":3\r\n"


@pytest.fixture
def only_what_is_new() -> Iterator[None]:
    """Let the garbage collector examine only objects that the test creates. Otherwise each collection would take
    long."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.usefixtures("only_what_is_new")
def test_a_proxy_that_ends_at_any_moment_leaves_no_connection_open(valkey: RedisServer) -> None:
    """The proxy may end while it is accepting a connection."""
    for n in range(60):
        with contextlib.ExitStack() as clients:
            with Proxy(valkey.port) as ending:
                port = int(ending.url.rpartition(":")[2].removesuffix("/0"))
                for _ in range(n % 4):
                    client = socket.create_connection(("127.0.0.1", port), timeout=5)
                    clients.enter_context(client).sendall(b"GET " + b"k" * 100_000)
                time.sleep(n % 7 / 10_000)  # the moment
            with warnings.catch_warnings(record=True) as left:
                warnings.simplefilter("always")
                gc.collect()
        assert left == []


def ask(connection: socket.socket) -> bytes:
    connection.sendall(b"INCR n\r\n")
    return connection.recv(100)
