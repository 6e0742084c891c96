"""Fixtures: an app with tasks, and a producer's app that lacks the code of these tasks. Both use one server."""

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
    """Yield a producer app that lacks the code of the tasks."""
    with App(redis_url) as made:
        yield made
