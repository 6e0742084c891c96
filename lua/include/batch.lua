--[[ batch: one command for many values, within the 8,000 slots of Lua's stack. ]]

local CHUNK = 4000

--- Call `command key value…` for all values, as few times as the stack allows; not at all for none.
local function call_many(command, key, values)
  for from = 1, values and #values or 0, CHUNK do
    redis.call(command, key, unpack(values, from, math.min(from + CHUNK - 1, #values)))
  end
end

--- Add members to a sorted set, all with one score, the last one first. Where a small set is kept as one list, Redis looks
--- for a member's place from the front, so members that ascend would each pass all those before them.
local function add_backwards(key, score, members)
  local values, count = {}, #members
  for i = 1, count do
    values[2 * i - 1], values[2 * i] = score, members[count + 1 - i]
  end
  call_many('ZADD', key, values)
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
