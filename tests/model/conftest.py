"""Fixtures of the models: servers without functions of other tests."""

import pytest

from tests.kit.servers import RedisServer


@pytest.fixture(autouse=True)
def _few_functions(request: pytest.FixtureRequest) -> None:
    """Remove all functions from the server. A failover in a history loads the server's functions again, which takes
    time."""
    name = "valkey" if "valkey" in request.fixturenames else "redis_server"
    server: RedisServer = request.getfixturevalue(name)
    with server.client() as control:
        control.function_flush()
