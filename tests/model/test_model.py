"""Random histories of a queue agree with a model of it in Python."""

import pytest

from tests.model.machine import Queue
from tests.model.running import run

pytestmark = pytest.mark.timeout(900)
"""Shrinking a failure takes its time."""


def test_random_histories_agree_with_the_model(valkey_url: str) -> None:
    run(lambda: Queue(valkey_url), examples=150)
