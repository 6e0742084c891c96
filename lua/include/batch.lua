--[[ batch: one command for many values, within the 8,000 slots of Lua's stack. ]]

local CHUNK = 4000

--- Call `command key value…` for all values, as few times as the stack allows; not at all for none.
local function call_many(command, key, values)
  for from = 1, values and #values or 0, CHUNK do
    redis.call(command, key, unpack(values, from, math.min(from + CHUNK - 1, #values)))
  end
end

local MANY = 16                       -- members from which on the way around a list pays
local NO_LIST = ('~'):rep(65)         -- longer than what Redis keeps in a list; nothing is named so

--- Add members to a sorted set, all with one score. A set of up to 128 members Redis keeps as one list that it searches
--- from the front for each member, unless one of them was too long for that once: so many are added together with one
--- that is, and is gone at once. A few are added the last one first: in ascending order each would pass those before it.
local function add_all(key, score, members)
  local values, count = {}, #members
  local has_many = count >= MANY
  if has_many then
    values[1], values[2] = score, NO_LIST
  end
  local offset = #values
  for i = 1, count do
    values[offset + 2 * i - 1], values[offset + 2 * i] = score, members[count + 1 - i]
  end
  call_many('ZADD', key, values)
  if has_many then
    redis.call('ZREM', key, NO_LIST)
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
