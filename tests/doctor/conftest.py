"""Fixtures: the engines on which the doctor's tests run.

`test_doctor.py` runs on both engines, since it covers all commands and scripts with which the doctor reads and repairs
a queue. The other tests run on one engine: the doctor draws its conclusions in Python, and the order of writes is the
same on each engine.
"""

from pathlib import Path

import pytest

from tests.kit.matrix import run_once

HERE = Path(__file__).parent
ON_BOTH = {"test_doctor.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    run_once(items, HERE, lambda file, _: file not in ON_BOTH)
