"""Parts: a part is the data of one feature about a job. One Lua file and one row of a table define it.

Each call that ends a job must remove the job's entry from the part's key.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from rq_core.model.keys import KEY_TYPES, queue_keys
from rq_core.model.table.machine import State
from rq_core.scripts import script
from rq_core.scripts.header import Variant
from rq_core.scripts.script import Script, build_function
from tests.kit.cases import case
from tests.kit.clock import CLOCK
from tests.kit.seed import NO_FENCE, Seed
from tests.kit.transports import LossyTransport
from tests.lua import test_matrix as matrix

FACTS = {"progress": "tracks", "signals": "waits_for_signals"}
"""The name of each part, which is also its key, and the fact that switches the part on."""


def part(name: str) -> str:
    """Return the text of a part's Lua file. The part's key has one field for each job, which is removed when the job
    ends."""
    return f"""--[[ {name}: something that is noted of a job until it ends.

Fact: {FACTS[name]}
With: {name}
Unread: {name}
Lists: ended_here
Uses: parts(list_of) batch(call_many)
]]

local lists = {{}}

local function decide(id)
  local ended = list_of(lists, 'ended_here')
  ended[#ended + 1] = id
  return true
end

local function check()
  check_keys()
end

local function write()
  call_many('HDEL', {name}, lists.ended_here)
end
"""


def includes() -> dict[str, str]:
    """Return Lua includes that add both test parts to each script, by name."""
    row = script.include("parts").replace("Parts: ", f"Parts: {' '.join(FACTS)} ", 1)
    return {"clock": CLOCK, "parts": row, **{name: part(name) for name in FACTS}}


@pytest.fixture(scope="module", autouse=True)
def _known_keys() -> Iterator[None]:
    """Let rq-core know the keys of both test parts."""
    with pytest.MonkeyPatch.context() as patch:
        for name in FACTS:
            patch.setitem(KEY_TYPES, name, "hash")
        yield


@pytest.fixture(scope="module")
def scripts(_known_keys: None) -> Callable[[str], Script]:
    return partial(build_function, variant=Variant(includes=includes()))


@pytest.fixture
def seed(redis_url: str, scripts: Callable[[str], Script]) -> Iterator[Seed]:
    with Seed(redis_url, scripts=scripts) as made:
        yield made


def switch_on(seed: Seed, name: str) -> None:
    """Let the queue use this part from now on, by the part's fact in `meta`."""
    control: Any = seed.control
    version = control.hget(seed.keys("meta"), "v") or "0"
    control.hset(seed.keys("meta"), mapping={FACTS[name]: 1, "v": f"{version}.{name}"})


def noted(seed: Seed, name: str = "progress") -> set[str]:
    control: Any = seed.control
    return set(control.hkeys(seed.keys(name)))


@pytest.mark.parametrize("each", matrix.STANDS, ids=lambda each: each.name)
@pytest.mark.slow
def test_each_end_of_a_job_removes_the_jobs_entry_from_each_optional_key(
    seed: Seed, each: matrix.Stand
) -> None:
    """Makes each call of tests/lua/test_matrix.py on a job in each state."""
    control: Any = seed.control
    for probe, wrong in matrix.cases(each):
        with case(call=probe.name, wrong_fence=wrong):
            start = seed.now
            other = seed.of(f"{probe.name.replace(' ', '-')}.{wrong}")
            other.cap(matrix.FULL_SCOPE, 0)
            fence = each.seed(other) or NO_FENCE
            if wrong:
                epoch, _, number = fence.partition("-")
                fence = f"{epoch}-{int(number) + (1 if each.name == 'held' else -1)}"
            control.hset(other.keys("progress"), mapping={matrix.JOB: 1, "another": 1})
            switch_on(other, "progress")
            path = matrix.walk(each.state, probe.script, matrix.facts_of(each, probe, wrong=wrong))

            probe.call(other, fence)

            has_ended = any(t.source and t.target in (None, State.DEAD) for t in path)
            assert noted(other) == {"another"} | (set() if has_ended else {matrix.JOB})
            seed.clock.set(start)


def test_an_optional_feature_of_a_queue_is_switched_on_again_after_the_key_meta_was_lost(
    seed: Seed,
) -> None:
    control: Any = seed.control
    seed.enqueue("a")
    switch_on(seed, "progress")
    control.delete(seed.keys("meta"))

    seed.enqueue("b")

    assert control.hmget(seed.keys("meta"), FACTS.values()) == ["1", "1"]


def test_the_optional_key_of_a_feature_is_deleted_with_its_queue(seed: Seed) -> None:
    control: Any = seed.control
    seed.complete(seed.running("a"))
    control.hset(seed.keys("progress"), "left", 1)

    seed.client.run(seed.calls.deletion.delete(seed.queue, by="operator"))

    assert not control.exists(seed.keys("progress"))


def test_only_one_lua_file_names_the_optional_key_of_a_feature() -> None:
    """The shipped Lua files and the table of parts must not name the key."""
    texts = [path.read_text() for path in script.lua_directory().glob("**/*.lua")]
    assert not any("progress" in text for text in texts)
    row, own = script.include("parts"), part("progress")
    assert "With: progress" in own
    assert "progress" not in row


def calls_of(
    transport: LossyTransport, name: str, scripts: Callable[[str], Script]
) -> list[Sequence[Any]]:
    function = scripts(name).function
    return [call for call in transport.calls if call[1] == function]


def keys_of(call: Sequence[Any]) -> set[str]:
    return set(call[3 : 3 + int(call[2])])


@contextmanager
def recorded(url: str, scripts: Callable[[str], Script]) -> Iterator[tuple[Seed, LossyTransport]]:
    transport = LossyTransport(url)
    with Seed(url, scripts=scripts, transport=transport) as made:  # type: ignore[arg-type]
        yield made, transport


@pytest.mark.parametrize(
    "used", [("progress",), ("signals",), ("progress", "signals"), ()], ids="-".join
)
def test_calls_carry_the_optional_keys_of_the_features_that_the_queue_uses(
    redis_url: str, scripts: Callable[[str], Script], used: tuple[str, ...]
) -> None:
    with recorded(redis_url, scripts) as (seed, transport):
        control: Any = seed.control
        seed.enqueue("before")
        for name in used:
            switch_on(seed, name)
        for name in FACTS:
            control.hset(seed.keys(name), "a", 1)
        seed.enqueue("a")
        transport.sent.clear()
        held = seed.claim(2).jobs
        seed.complete(*held)

        expected = {queue_keys(seed.queue)(name) for name in used}
        every = {queue_keys(seed.queue)(name) for name in FACTS}
        for script_name in ("claim", "complete"):
            # The call is sent twice if the server does not have the script yet.
            calls = calls_of(transport, script_name, scripts)
            assert all(keys_of(call) & every == expected for call in calls)
            assert calls
        assert {name for name in FACTS if noted(seed, name)} == set(FACTS) - set(used)


def test_calls_carry_an_optional_key_and_the_keys_of_kept_results_together(
    redis_url: str, scripts: Callable[[str], Script]
) -> None:
    with recorded(redis_url, scripts) as (seed, transport):
        control: Any = seed.control
        seed.enqueue(seed.job("a", keep_ms=60_000))
        switch_on(seed, "signals")
        control.hset(seed.keys("signals"), "a", 1)
        seed.turn(*seed.claim().jobs, values={1: "7"})

        call = calls_of(transport, "turn", scripts)[-1]
        assert keys_of(call) == {
            queue_keys(seed.queue)(name)
            for name in set(scripts("turn").all_keys) - {"progress", "boxes", "parked", "shown"}
        }  # fmt: skip
        assert noted(seed, "signals") == set()
        assert control.hget(seed.keys("returned"), "a") == "7"
