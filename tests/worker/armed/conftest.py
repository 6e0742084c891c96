"""Fixture: an app of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rq_core.app.app import App


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    app = App(valkey_url)
    yield app
    app.close()
