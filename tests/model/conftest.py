"""The models' servers begin without functions."""

import pytest

from tests.kit.servers import RedisServer


@pytest.fixture(autouse=True)
def _few_functions(request: pytest.FixtureRequest) -> None:
    """Forget what other tests have loaded: a failover of a random history loads all functions of its server again."""
    name = "valkey" if "valkey" in request.fixturenames else "redis_server"
    server: RedisServer = request.getfixturevalue(name)
    with server.client() as control:
        control.function_flush()
