"""Fixture: a client on the engine that the tests use with the database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rq_core.connections.client import Client


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url) as client:
        yield client
