"""Fixtures: the engines on which the doctor's tests run.

`test_doctor.py` runs on both engines, and covers the commands and scripts with which the doctor reads and repairs. The
other tests run on one engine, since the doctor draws its conclusions in Python, and the scripts alone decide the order
of writes.
"""

from pathlib import Path

import pytest

from tests.kit.matrix import run_once

HERE = Path(__file__).parent
ON_BOTH = {"test_doctor.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    run_once(items, HERE, lambda file, _: file not in ON_BOTH)
