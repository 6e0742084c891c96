"""Fixtures of the models: servers without functions."""

import pytest

from tests.kit.servers import RedisServer


@pytest.fixture(autouse=True)
def _few_functions(request: pytest.FixtureRequest) -> None:
    """Remove the functions that other tests loaded, since a random failover loads all functions of its server again."""
    name = "valkey" if "valkey" in request.fixturenames else "redis_server"
    server: RedisServer = request.getfixturevalue(name)
    with server.client() as control:
        control.function_flush()
