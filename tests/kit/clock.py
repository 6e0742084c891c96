"""Scripts that read the time from a key in Redis, which a test sets.

So leases and due times are exact, and a seed gives the same run each time.
"""

from functools import cache

import redis

from rq_core.scripts.header import Variant
from rq_core.scripts.script import Script, build_function, build_script

CLOCK_KEY = "test:clock"
"""The key with the time. It is outside every queue, so that no snapshot contains it and no loss of a queue's data stops
the clock."""

CLOCK = f"""--[[ clock: the time that a test has set, or the server's if it has set none. ]]

local function clock_ms()
  local set = redis.call('GET', '{CLOCK_KEY}')
  if set then
    return tonumber(set), set
  end
  local time = redis.call('TIME')
  local text = time[1] .. ('00000' .. time[2]):sub(-6, -4)
  return tonumber(text), text
end
"""


TIMED = Variant(includes={"clock": CLOCK})


def timed(name: str) -> Script:
    """Return the script on the test's clock, as a function of Redis. Delivery takes `timed` as ``scripts``."""
    return build_function(name, TIMED)


@cache
def timed_with(name: str, prelude: str) -> Script:
    """Return the script on the test's clock, with the Lua text ``prelude`` before it."""
    return build_script(name, Variant(includes={"clock": CLOCK}, prelude=prelude))


class Clock:
    """The time that timed scripts read. The time changes only when a test advances it."""

    def __init__(self, control: redis.Redis, now_ms: int, *, running: bool = True) -> None:
        self._control = control
        self.now_ms = now_ms
        if running:
            self.set(now_ms)

    def set(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self._control.set(CLOCK_KEY, now_ms)

    def advance(self, ms: int) -> None:
        self.set(self.now_ms + ms)
