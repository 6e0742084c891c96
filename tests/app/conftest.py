"""Fixtures: an app on the fake server, and users of Redis. A user has the rights that `rq-core acl` prints for one
role."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from rq_core import App, testing
from rq_core.cli.root import root
from tests.kit.servers import RedisServer

As = Callable[..., str]


@pytest.fixture
def app() -> App:
    """Return an app without a server. Some files have an app of their own."""
    return App()


@pytest.fixture
def fake(app: App) -> Iterator[testing.Fake]:
    """Yield the fake server on which the app runs."""
    with testing.fake(app) as made:
        yield made


@pytest.fixture
def did() -> list[Any]:
    """Return the list in which the tasks of a test note what they did."""
    return []


@pytest.fixture
def control(redis_server: RedisServer) -> Iterator[Any]:
    """Yield a connection as the server's default user. After the test, delete the users that the test made."""
    with redis_server.client(decode_responses=True) as client:
        client.execute_command("FUNCTION", "FLUSH")
        client.execute_command("ACL", "LOG", "RESET")
        yield client
        for user in client.acl_users():
            if user != "default":
                client.acl_deluser(user)


@pytest.fixture
def as_(control: Any, redis_server: RedisServer) -> As:
    """Return a function that makes a Redis user for a role, and returns the user's URL. `rq-core acl` prints the
    rights."""

    def make(role: str, *options: str, without: str = "") -> str:
        result = CliRunner().invoke(root, ["acl", role, *options])
        assert result.exit_code == 0, result.output
        rules = result.stdout.strip()
        assert (without == "") == (without not in rules.split(" "))
        control.execute_command(*[word for word in rules.split(" ") if word != without])
        return f"redis://rq-core-{role}:PASSWORD@127.0.0.1:{redis_server.port}/0"

    return make
