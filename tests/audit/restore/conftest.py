"""Fixture: a client of the test's Redis server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rq_core.connections.client import Client


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url) as client:
        yield client
