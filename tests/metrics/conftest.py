"""Fixture: a client that prepares the queue of a test."""

from collections.abc import Iterator

import pytest

from rq_core.connections.client import Client


@pytest.fixture
def client(valkey_url: str) -> Iterator[Client]:
    with Client(valkey_url) as made:
        yield made
