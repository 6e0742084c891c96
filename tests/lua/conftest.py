"""Fixtures of the script tests: an empty queue on a clock that stands still, once per engine."""

from collections.abc import Iterator

import pytest

from tests.kit.seed import Seed


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url) as made:
        yield made
