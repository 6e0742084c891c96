"""Fixture: an app that never connects to a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rq_core import App


@pytest.fixture
def app() -> Iterator[App]:
    with App("redis://nowhere.invalid") as made:
        yield made
