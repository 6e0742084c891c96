"""Fixtures of the tests of Lua scripts: an empty queue, on a clock that a test advances.

Lua and the commands that scripts use are the same on Valkey and Redis. So most tests run on one engine. The files in
ON_BOTH run on both engines. Among them are the tests of each change of a job's state, of errors within a script, and of
repeated calls.
"""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.kit.listener import Listener
from tests.kit.matrix import run_once
from tests.kit.seed import Seed

HERE = Path(__file__).parent
ON_BOTH = {
    "test_matrix.py", "test_crash.py", "test_replay.py", "test_remembered.py", "test_killed_server.py", "test_room.py",
}  # fmt: skip
ANSWERED_AGAIN = tuple(
    f"test_a_call_that_is_sent_again_has_the_same_answer_and_effect[{{}}-{trouble}-"
    for trouble in ("lost three times", "not sent at first", "lost with the scripts", "no scripts")
)
"""The beginnings of test names. In these tests a client repeats a call after a fault that is rarer than one lost reply.
The engine's name replaces {}. CI runs these tests."""
ON_ONE = (
    "test_no_script_reads_after_its_first_write",
    "test_an_error_at_any_read_of_a_script_changes_no_byte",
    "test_a_script_writes_nothing_if_any_key_has_a_wrong_type",
    "test_a_call_with_invalid_arguments_is_refused_as_a_whole",
    "test_a_killed_server_restarts_with_",
    *(name.format("redis7") for name in ANSWERED_AGAIN),
)  # fmt: skip
"""The beginnings of the names of tests that run on one engine only, although their files are in ON_BOTH.

The first four show the order of the steps of a script: a script that ends before its first write has written nothing,
on any engine. Other tests of test_crash.py show that the same errors stop a script on both engines. On the second
engine, one kind of fault suffices to show which data a script keeps for a repeated call. The other kinds of fault
happen in the client.
"""


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    run_once(items, HERE, lambda file, test: file not in ON_BOTH or test.startswith(ON_ONE))
    again = tuple(name.format("valkey") for name in ANSWERED_AGAIN)
    for item in items:
        if item.name.startswith(again):
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Check after each test that the indexes, state lines and log of its queue agree.

    Tests with the mark `damaged` are not checked.
    """
    result = yield
    seed = pyfuncitem.funcargs.get("seed")
    if isinstance(seed, Seed) and pyfuncitem.get_closest_marker("damaged") is None:
        seed.assert_consistent()
    return result


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url) as made:
        yield made


@pytest.fixture
def listener(seed: Seed) -> Iterator[Listener]:
    made = Listener(seed)
    yield made
    made.close()
