"""Where the doctor's tests run.

It reads and mends by commands and scripts that `test_doctor.py` shows on both engines. What it makes of what it read is
Python's; what a script leaves that is broken in the middle is the script's own order.
"""

from pathlib import Path

import pytest

from tests.kit.matrix import run_once

HERE = Path(__file__).parent
ON_BOTH = {"test_doctor.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    run_once(items, HERE, lambda file, _: file not in ON_BOTH)
