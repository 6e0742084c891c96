"""Breaks a script off after some of its writes. Redis does not undo these writes."""

import redis

from tests.kit.clock import timed_with
from tests.kit.scenes import Scene
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


def broken_after(count: int, seed: Seed, scene: Scene) -> bool:
    """Make the scene's call, and break it off after ``count`` writes. Return whether it had more to write."""
    script = timed_with(scene.script, BREAK_AT_WRITE)
    seed.control.set(WRITES_ALLOWED, count)
    try:
        seed.control.execute_command(*scene.command(seed, script))  # type: ignore[no-untyped-call]
    except redis.ResponseError as error:
        if "broken by the test" not in str(error):
            raise
        return True
    return False
