"""Fixture: a client with which a test prepares its queue."""

from collections.abc import Iterator

import pytest

from rq_core.connections.client import Client


@pytest.fixture
def client(valkey_url: str) -> Iterator[Client]:
    with Client(valkey_url) as made:
        yield made
