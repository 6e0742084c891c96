"""Fixtures of the models: servers on which no functions are loaded."""

import pytest

from tests.kit.servers import RedisServer


@pytest.fixture(autouse=True)
def _few_functions(request: pytest.FixtureRequest) -> None:
    """Remove the functions that other tests loaded. A failover in a random history loads all functions of the server
    again, which takes less time if there are few."""
    name = "valkey" if "valkey" in request.fixturenames else "redis_server"
    server: RedisServer = request.getfixturevalue(name)
    with server.client() as control:
        control.function_flush()
