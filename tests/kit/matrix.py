"""Chooses on which engines and databases each test runs.

A test with the fixture of an engine or a database runs on each of them. A `conftest.py` may limit this. It calls
`run_once` if further runs would prove nothing more, and `slow_again` if they would prove little more.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.kit.servers import engines

FIRST: Final = {"engine": engines()[0], "audit_url": "sqlite"}
"""The engine and the database of tests that run only once, by the name of the fixture. Tests that catch mutants also
run on them."""


def run_once(items: list[pytest.Item], where: Path, is_once: Callable[[str, str], bool]) -> None:
    """Let the chosen tests in the folder ``where`` run only on the first engine and the first database.

    A test is chosen if ``is_once(file, test)`` is true. The name ``test`` includes the parameters. Call this function
    in `pytest_collection_modifyitems`.
    """
    place = str(where)
    items[:] = [item for item in items if _is_first(item) or not _is_named(item, place, is_once)]


def slow_again(items: list[pytest.Item], where: Path, is_slow: Callable[[str, str], bool]) -> None:
    """Mark the chosen tests in the folder ``where`` as slow, except on the first engine and the first database.

    `scripts/test` then runs each once, and CI runs it on all of them. The arguments are those of `run_once`.
    """
    place = str(where)
    for item in items:
        if _is_named(item, place, is_slow) and not _is_first(item):
            item.add_marker("slow")


def _is_named(item: pytest.Item, where: str, is_once: Callable[[str, str], bool]) -> bool:
    # Each process of a run asks this of each test, and pathlib compares paths ten times as slowly.
    path = str(item.path)
    within = path == where or path.startswith(where + os.sep)
    return within and is_once(item.path.name, item.name)


def _is_first(item: pytest.Item) -> bool:
    if not hasattr(item, "callspec"):
        return True
    params = item.callspec.params
    return all(params.get(name, first) == first for name, first in FIRST.items())
