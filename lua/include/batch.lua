--[[ batch: one command for many values, within the 8,000 slots of Lua's stack. ]]

local CHUNK = 4000

--- Call `command key value…` for all values, as few times as the stack allows; not at all for none.
local function call_many(command, key, values)
  for from = 1, values and #values or 0, CHUNK do
    redis.call(command, key, unpack(values, from, math.min(from + CHUNK - 1, #values)))
  end
end

--- The hash fields `names`, in order; false where there is none.
local function read_many(key, names)
  if #names <= CHUNK then
    return #names > 0 and redis.call('HMGET', key, unpack(names)) or {}
  end
  local values = {}
  for from = 1, #names, CHUNK do
    local last = math.min(from + CHUNK - 1, #names)
    for _, value in ipairs(redis.call('HMGET', key, unpack(names, from, last))) do
      values[#values + 1] = value
    end
  end
  return values
end
