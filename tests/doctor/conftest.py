"""Fixtures: the engines on which the doctor's tests run.

`test_doctor.py` shows on both engines the commands and scripts by which the doctor reads and repairs. All conclusions
are drawn in Python, and the order of writes is the scripts' own, so that one engine is enough for the rest.
"""

from pathlib import Path

import pytest

from tests.kit.matrix import run_once

HERE = Path(__file__).parent
ON_BOTH = {"test_doctor.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    run_once(items, HERE, lambda file, _: file not in ON_BOTH)
