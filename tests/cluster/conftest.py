"""Fixture: a cluster. All tests of a run share one cluster per engine, which each test finds empty and repaired.

A cluster that cannot be repaired is replaced.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.kit import servers
from tests.kit.clusters import RedisCluster
from tests.kit.servers import Engine


@pytest.fixture(scope="session")
def _clusters() -> Iterator[Callable[[Engine], RedisCluster]]:
    started: dict[str, RedisCluster] = {}

    def get(engine: Engine) -> RedisCluster:
        if engine.name in started:
            try:
                started[engine.name].reset()
            except AssertionError:
                # What a test before did to its nodes does not heal by itself: others begin with new ones.
                started.pop(engine.name).stop()
        if engine.name not in started:
            directory = servers.private_directory(f"{engine.name}-cluster")
            started[engine.name] = RedisCluster(engine, directory).start()
            started[engine.name].reset()
        return started[engine.name]

    yield get
    for cluster in started.values():
        cluster.stop()


@pytest.fixture
def cluster(engine: Engine, _clusters: Callable[[Engine], RedisCluster]) -> RedisCluster:
    return _clusters(engine)
