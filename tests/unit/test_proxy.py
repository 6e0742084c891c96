"""The proxy of the chaos run does to connections what its modes say."""

from __future__ import annotations

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
    """A client behind the proxy, connected."""
    with redis.Redis.from_url(
        between.url, retry=Retry(NoBackoff(), 0), socket_timeout=2, protocol=2
    ) as client:
        client.ping()
        yield client


def test_what_is_not_touched_passes(near: redis.Redis) -> None:
    near.set("k", "v" * 1_000_000)

    assert near.get("k") == b"v" * 1_000_000


def test_a_command_whose_reply_is_dropped_was_carried_out(
    between: Proxy, near: redis.Redis, valkey: RedisServer
) -> None:
    with between.doing(Mode.DROP_REPLY), pytest.raises(redis.ConnectionError):
        near.incr("n")

    assert between.taken == 1
    assert near.get("n") == b"1"


@pytest.mark.parametrize("mode", [Mode.DROP_REQUEST, Mode.RESET])
def test_a_command_that_is_dropped_was_not_carried_out(
    mode: Mode, between: Proxy, near: redis.Redis
) -> None:
    with between.doing(mode), pytest.raises(redis.ConnectionError):
        near.incr("n")

    assert near.get("n") is None


def test_a_stalled_command_is_carried_out_when_the_stall_ends(
    between: Proxy, near: redis.Redis, valkey: RedisServer
) -> None:
    with between.doing(Mode.STALL), pytest.raises(redis.TimeoutError):
        near.incr("n")
    with valkey.client() as direct:
        wait_until(lambda: direct.get("n") == b"1", "it was carried out")


def test_slices_and_delays_change_nothing_but_the_time(between: Proxy, near: redis.Redis) -> None:
    for mode in (Mode.SLICE, Mode.DELAY):
        with between.doing(mode):
            near.set("k", "v" * 3_000)
            assert near.get("k") == b"v" * 3_000

    assert between.taken >= 8
