"""The matrix of servers, and the tests that run on all of it.

A test runs on each engine whose fixture it uses, and on each database. Where a second engine or database would prove
nothing more, a `conftest.py` gives the reason and calls `run_once`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.kit.servers import engines

FIRST: Final = {"engine": engines()[0], "audit_url": "sqlite"}
"""By fixture: the value on which a test runs that runs once. Mutants are caught there, too."""


def run_once(items: list[pytest.Item], where: Path, is_once: Callable[[str, str], bool]) -> None:
    """Let some tests under ``where`` run on the first engine and the first database only.

    These are the tests for which ``is_once(file, test)`` is true; the name of a test includes its parameters. Call this
    function from `pytest_collection_modifyitems`.
    """
    items[:] = [item for item in items if _is_first(item) or not _is_named(item, where, is_once)]


def _is_named(item: pytest.Item, where: Path, is_once: Callable[[str, str], bool]) -> bool:
    return item.path.is_relative_to(where) and is_once(item.path.name, item.name)


def _is_first(item: pytest.Item) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return all(params.get(name, first) == first for name, first in FIRST.items())
