"""An app with tasks, and a producer without them, on one server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rq_core import App


@pytest.fixture
def app(redis_url: str) -> Iterator[App]:
    with App(redis_url) as made:
        yield made


@pytest.fixture
def other(redis_url: str) -> Iterator[App]:
    """A producer that has no code."""
    with App(redis_url) as made:
        yield made
