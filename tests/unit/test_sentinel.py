"""URLs that name sentinels, and what a client asks sentinels. tests/worker/test_sentinel.py tests real sentinels."""

from __future__ import annotations

import threading
from typing import Any, Self

import pytest
import redis
import redis.asyncio

from rq_core.connections.sentinel import PrimaryConnection, Sentinels, parse_sentinel_url
from rq_core.connections.transport import AsyncPoolTransport, PoolTransport
from rq_core.errors import InvalidOption
from rq_core.protocol.engine.retried_commands import Asking
from tests.kit.forked import forked


def sentinels_of(url: str) -> tuple[str, Sentinels]:
    plain, options = parse_sentinel_url(url, for_asyncio=False, answer_within=10.0)
    sentinels: Sentinels = options["sentinels"]
    return plain, sentinels


@pytest.mark.parametrize(
    ("url", "addresses", "plain"),
    [
        ("redis+sentinel://a/main", [("a", 26379)], "redis://sentinel/0?"),
        ("redis+sentinel://a:1,b:2/main/3", [("a", 1), ("b", 2)], "redis://sentinel/3?"),
        ("redis+sentinel://a:1,b/main?db=3", [("a", 1), ("b", 26379)], "redis://sentinel/3?"),
        ("redis+sentinel://[::1]:5/main", [("::1", 5)], "redis://sentinel/0?"),
        ("rediss+sentinel://u:p@a:1/main", [("a", 1)], "rediss://u:p@sentinel/0?"),
        (
            "redis+sentinel://:p%40@a/main?health_check_interval=5",
            [("a", 26379)],
            "redis://:p%40@sentinel/0?health_check_interval=5",
        ),
    ],
)
def test_a_sentinel_url_has_sentinels_a_service_and_a_database(
    url: str, addresses: list[tuple[str, int]], plain: str
) -> None:
    found, sentinels = sentinels_of(url)

    assert found == plain
    assert sentinels.addresses == addresses
    assert sentinels.service == "main"


def test_sentinels_have_their_own_password_and_share_only_tls_settings_with_the_server() -> None:
    _, sentinels = sentinels_of(
        "rediss+sentinel://user:secret@a/main?sentinel_username=watch&sentinel_password=other"
        "&ssl_ca_certs=/ca.pem"
    )

    assert sentinels.options["username"] == "watch"
    assert sentinels.options["password"] == "other"  # noqa: S105 - made up
    assert sentinels.options["ssl_ca_certs"] == "/ca.pem"
    assert sentinels.options["ssl"] is True


def test_no_password_is_sent_to_sentinels_that_have_no_password_of_their_own() -> None:
    _, sentinels = sentinels_of("redis+sentinel://user:secret@a/main")

    assert not {"username", "password"} & set(sentinels.options)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis+sentinel://a:1", "names no service"),
        ("redis+sentinel://a:1/main/x", "x is not the number of a database"),
        ("redis+sentinel://a:1/main?db=first", "first is not the number of a database"),
        ("redis+sentinel://a:1,/main", "'nothing' is not the host:port of a sentinel"),
        ("redis+sentinel://a:one/main", "its port is not a number up to 65535"),
        ("redis+sentinel://a:1/main?nonsense=1", "nonsense"),
    ],
)
@pytest.mark.parametrize("transport", [PoolTransport, AsyncPoolTransport])
def test_an_invalid_sentinel_url_is_refused_before_anything_is_sent(
    url: str, words: str, transport: type[Any]
) -> None:
    with pytest.raises(InvalidOption, match=words):
        transport(url)


def test_messages_about_sentinels_contain_no_password() -> None:
    asking = Asking(url="redis+sentinel://u:secret@a:1,b:2/main?db=1&sentinel_password=other&x=1")

    assert asking.url == "redis+sentinel://u:***@a:1,b:2/main?db=1&sentinel_password=***&x=1"
    assert Asking(url="redis://:secret@a:1/0").url == "redis://:***@a:1/0"


def test_a_sentinel_that_answered_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead sentinel costs a timeout, and must not be asked first each time."""
    asked = []

    class Known:
        def __init__(self, host: str, port: int, **_: Any) -> None:
            self.address = host, port

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            """Leave the context and close nothing."""

        def execute_command(self, *words: str) -> list[str] | None:
            assert words == ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
            asked.append(self.address[0])
            if self.address[0] == "dead":
                raise redis.TimeoutError("no answer")
            return ["primary", "7"] if self.address[0] == "wise" else None

    monkeypatch.setattr(redis, "Redis", Known)
    sentinels = Sentinels([("dead", 1), ("new", 2), ("wise", 3)], "main")

    assert sentinels.ask() == sentinels.ask() == ("primary", 7)
    assert asked == ["dead", "new", "wise", "wise"]
    with pytest.raises(redis.ConnectionError, match=r"dead:1: no answer; new:2 knows no service"):
        Sentinels([("dead", 1), ("new", 2)], "main").ask()


@pytest.mark.parametrize("tls", [False, True])
def test_the_connection_class_of_a_sentinel_url_uses_tls_only_for_the_scheme_rediss(
    tls: bool,
) -> None:
    scheme = "rediss" if tls else "redis"
    _, options = parse_sentinel_url(
        f"{scheme}+sentinel://a/main", for_asyncio=False, answer_within=1.0
    )

    assert issubclass(options["connection_class"], PrimaryConnection)
    assert issubclass(options["connection_class"], redis.SSLConnection) is tls


def test_a_forked_child_does_not_wait_for_a_lock_of_its_parent() -> None:
    """The process forks while one of its threads holds the lock for the known primary."""
    _, sentinels = sentinels_of("redis+sentinel://a:1,b:2/main")
    answer: list[str] = []

    def ask_again() -> None:
        sentinels.doubt()
        answer.append("goes on")

    def in_child() -> str:
        thread = threading.Thread(target=ask_again, daemon=True)
        thread.start()
        thread.join(5)
        return "".join(answer)

    with sentinels._lock:
        said = forked(in_child)

    assert said == "goes on"
