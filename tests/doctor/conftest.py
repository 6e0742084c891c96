"""Fixtures: the engines on which the doctor's tests run.

`test_doctor.py` covers all commands and scripts of the doctor, and runs on both engines. All other files run on one
engine, since the doctor draws its conclusions in Python.
"""

from pathlib import Path

import pytest

from tests.kit.matrix import run_once

HERE = Path(__file__).parent
ON_BOTH = {"test_doctor.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    run_once(items, HERE, lambda file, _: file not in ON_BOTH)
