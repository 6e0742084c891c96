"""Scripts that break between two writes. The doctor can repair the queue that a broken script leaves (invariant I8).

Redis does not undo the writes of a broken script. `tests/lua/test_crash.py` shows that no script breaks by itself.
These tests take each script that moves jobs, and break it after each of its writes. An oracle that shares no code with
the doctor checks the repaired queue.
"""

from collections.abc import Iterator

import pytest

from rq_core.doctor import Kind, diagnose, repair
from rq_core.model.table.machine import TRANSITIONS
from tests.kit.broken import broken_after
from tests.kit.consistency import assert_consistent
from tests.kit.scenes import SCENES
from tests.kit.seed import Seed
from tests.kit.snapshots import copy_queue

MOVES_NO_JOB = {
    "extend", "configure", "handshake", "attach", "detach", "baseline", "trim", "register", "delete",
    "listen", "schedule", "save", "show", "spend", "pause",
}  # fmt: skip
MOVES_JOBS = [name for name in SCENES if name.partition("_")[0] not in MOVES_NO_JOB]
LEFT_TO_OPERATORS = {("cap", Kind.LOG_DIFFERS)}
"""Findings that the doctor reports and does not repair, by script."""

WRITES_MAX = 100


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url) as made:
        yield made


@pytest.fixture
def other(seed: Seed, redis_url: str) -> Iterator[Seed]:
    """Yield a seed with a client of its own, for copies of the queue."""
    with Seed(redis_url, name="c-2") as made:
        made.clock = seed.clock
        yield made


def test_these_tests_cover_every_script_that_changes_the_state_of_a_job() -> None:
    assert {t.script for t in TRANSITIONS} <= set(MOVES_JOBS)


@pytest.mark.parametrize("name", MOVES_JOBS)
@pytest.mark.slow
def test_the_doctor_repairs_a_queue_after_a_script_broke_at_any_write(
    seed: Seed, other: Seed, name: str
) -> None:
    scene = SCENES[name](seed)
    for count in range(WRITES_MAX):
        queue = other.of(f"q-{count}")
        copy_queue(seed.control, seed.queue, queue.queue)
        if not broken_after(count, queue, scene):
            break

        found = diagnose(queue.client, queue.queue, sleep=lambda _: None)
        left = repair(queue.client, queue.queue, found, by="ada")

        # An operator decides about a limit that was logged and not stored.
        left = [each for each in left if (name, each.kind) not in LEFT_TO_OPERATORS]
        assert left == [], f"after {count} writes: {found}"
        assert_consistent(queue.snapshot())
    else:
        raise AssertionError(f"{name} makes more than {WRITES_MAX} writes")
    assert count > 2, "it was broken in the middle"
