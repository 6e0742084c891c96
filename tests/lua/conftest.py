"""Fixtures of the script tests: an empty queue on a clock that stands still.

What is promised of every script (when it may move a job, what an error leaves, what a call that is sent again answers)
is tested on both engines; the rest on one, since Lua and the commands that scripts make are the same on both.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.seed import Seed
from tests.kit.servers import engines

HERE = Path(__file__).parent
FIRST = engines()[0]
ON_BOTH = {"test_matrix.py", "test_crash.py", "test_replay.py", "test_remembered.py"}
ON_ONE = {
    "test_no_read_follows_the_first_write",
    "test_an_error_at_any_read_leaves_every_byte",
    "test_a_wrong_type_in_any_key_leaves_every_byte",
    "test_bad_arguments_are_refused_whole",
}
"""Of those files, but on one: what they show is the order of a script's own steps. A script that ends before its first
write has written nothing on either; that the engines agree in what stops one, the other tests of test_crash.py show."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if _is_wanted(item)]


def _is_wanted(item: pytest.Item) -> bool:
    if not item.path.is_relative_to(HERE):
        return True
    name = getattr(item, "originalname", item.name)
    if item.path.name in ON_BOTH and name not in ON_ONE:
        return True
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return params.get("engine") in (None, FIRST)


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url) as made:
        yield made
