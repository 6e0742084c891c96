--[[ wake: one token for one idle worker. Whoever finds work left after waking puts a token back, so one is
always enough.

Keys: wake
]]

--- True if the list has no token. Also its type check, so ask before the first write.
local function wake_is_empty()
  return redis.call('LLEN', wake) == 0
end

local function push_token()
  redis.call('RPUSH', wake, '1')
end
