"""A script that breaks between two of its writes leaves a queue that the doctor can repair (invariant I8).

Redis does not undo the writes of a broken script. `tests/lua/test_crash.py` shows that no script breaks in this way by
itself, so these tests break each script by force, once after each of its writes. They compare the repaired queue with
an oracle that shares no code with the doctor.
"""

from collections.abc import Iterator

import pytest
import redis

from rq_core.doctor import Kind, diagnose, repair
from rq_core.model.table.machine import TRANSITIONS
from tests.kit.clock import timed_with
from tests.kit.consistency import assert_consistent
from tests.kit.scenes import SCENES, Scene
from tests.kit.seed import Seed

WRITES_ALLOWED = "test:writes-allowed"
BREAK_AT_WRITE = f"""
local redis = (function(server, made, writes)
  local most = tonumber(server.call('GET', '{WRITES_ALLOWED}'))
  return {{sha1hex = server.sha1hex, call = function(command, ...)
    if writes[command] then
      made = made + 1
      if made > most then
        error('broken by the test')
      end
    end
    return server.call(command, ...)
  end}}
end)(redis, 0, {{
  XADD = 1, HSET = 1, HDEL = 1, ZADD = 1, ZREM = 1, LPUSH = 1, RPUSH = 1, LTRIM = 1, XTRIM = 1,
}})
"""

MOVES_NO_JOB = {
    "extend", "configure", "handshake", "attach", "detach", "baseline", "trim", "register", "delete",
    "listen", "schedule", "save",
}  # fmt: skip
MOVES_JOBS = [name for name in SCENES if name.partition("_")[0] not in MOVES_NO_JOB]
LEFT_TO_OPERATORS = {("cap", Kind.LOG_DIFFERS), ("signal", Kind.NO_BOX)}
"""Findings that the doctor reports and does not repair, by script."""

LEAVE_RIPE_JOBS = {"park", "signal"}
"""Scripts whose parked jobs may stay parked after the repair although their signal has come. If such a script breaks
after its event parked or signalled, and before its event woken, the log does not say that the job was woken."""

WRITES_MAX = 100


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url) as made:
        yield made


def broken_after(count: int, seed: Seed, scene: Scene) -> bool:
    """Run the call, and break it after this number of writes. Return whether the call would have written more."""
    script = timed_with(scene.script, BREAK_AT_WRITE)
    seed.control.set(WRITES_ALLOWED, count)
    try:
        seed.control.execute_command(*scene.command(seed, script))  # type: ignore[no-untyped-call]
    except redis.ResponseError as error:
        if "broken by the test" not in str(error):
            raise
        return True
    return False


def test_these_tests_break_every_script_that_changes_the_state_of_a_job() -> None:
    assert {t.script for t in TRANSITIONS} <= set(MOVES_JOBS)


@pytest.mark.parametrize("name", MOVES_JOBS)
def test_the_doctor_repairs_a_queue_after_a_script_broke_at_any_write(
    seed: Seed, name: str
) -> None:
    for count in range(WRITES_MAX):
        queue = seed.of(f"q-{count}")
        scene = SCENES[name](queue)
        if not broken_after(count, queue, scene):
            break

        found = diagnose(queue.client, queue.queue, sleep=lambda _: None)
        left = repair(queue.client, queue.queue, found, by="ada")

        # An operator decides about a limit that was logged and not stored, and about a signal that was.
        left = [each for each in left if (name, each.kind) not in LEFT_TO_OPERATORS]
        assert left == [], f"after {count} writes: {found}"
        if name not in LEAVE_RIPE_JOBS:
            assert_consistent(queue.snapshot())
    else:
        raise AssertionError(f"{name} makes more than {WRITES_MAX} writes")
    assert count > 2, "it was broken in the middle"
