"""Room for further features in the scripts. Lua limits a function to 200 local variables and 60 upvalues."""

from typing import Any

import pytest
import redis

from rq_core.scripts import script
from rq_core.scripts.header import Variant
from scripts.docs import lua_limits
from tests.kit.seed import Seed

ANOTHER = """
--- Nothing, but every script that ends a job makes it.
local function another_end(id)
  return facts.ties and id
end
"""


def with_another_function() -> Variant:
    """Return the includes with one more function in `removal`. The include `success` calls it."""
    removal, success = script.include("removal"), script.include("success")
    return Variant(
        includes={
            "removal": removal + ANOTHER,
            "success": success.replace("remove_jobs)", "remove_jobs another_end)").replace(
                "local function write_success()\n", "local function write_success()\n  another_end(done[1])\n"
            ),
        }
    )  # fmt: skip


def test_every_script_is_small_enough_to_include_one_more_lua_function(seed: Seed) -> None:
    control: Any = seed.control
    variant = with_another_function()
    for name in script.names():
        for made in (script.build_function(name, variant), script.build_script(name, variant)):
            assert ("another_end" in made.text) == (name in ("complete", "turn"))
            try:
                control.execute_command(*made.loading)
            except redis.ResponseError as refused:
                raise AssertionError(f"{name}: {refused}") from refused


@pytest.mark.slow
def test_every_script_is_far_enough_below_the_limits_on_lua_locals_and_upvalues() -> None:
    assert {
        name: lua_limits.left(name)
        for name in script.names()
        if not lua_limits.left(name).is_enough
    } == {}


def test_the_check_of_lua_limits_counts_the_locals_and_the_upvalues_of_a_function() -> None:
    """A loop has three hidden locals. An upvalue counts in each function between its definition and its use."""
    code = """
local a, b = 1, {c = 2, d = function() return 3 end}
do local c, d, e = a, b.c, 3 end
for i = 1, 2 do local f = i end
local function outer(x)
  local y = x
  return function() return y + a + math.max(x, 1) end
end
"""
    around, _of_table, outer, inner = lua_limits.functions(code)

    assert (around.locals, around.outside) == (2 + 3 + 1 + 1, set())
    assert (outer.locals, outer.outside) == (2, {"a"})
    assert (inner.locals, inner.outside) == (0, {"y", "a", "x"})
