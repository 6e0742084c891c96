--[[ batch: one command for many values, within the 8,000 slots of Lua's stack. ]]

local CHUNK = 4000   -- an even number: no pair of a score and a member, or of a field and a value, may be torn apart

--- Call `command key value…` for all values, as few times as the stack allows; not at all for none.
local function call_many(command, key, values)
  local size = values and #values or 0
  if size == 0 then
    return
  elseif size <= CHUNK then
    redis.call(command, key, unpack(values))
    return
  end
  for from = 1, size, CHUNK do
    redis.call(command, key, unpack(values, from, math.min(from + CHUNK - 1, size)))
  end
end

local MANY = 16                       -- members from which on the way around a list pays
local NO_LIST = ('~'):rep(65)         -- longer than what Redis keeps in a list; nothing is named so

--- Add to a sorted set: `values` are a score and a member each, and are not to be used afterwards. A set of up to 128 members
--- Redis keeps as one list, which it searches from the front for each member that is added. A member that is too long for
--- a list ends that for good, so where many are added such a one is added first, and removed at the end. It takes the place
--- of the first pair, which goes to the end: a sorted set does not care for the order in which its members come.
local function add_many(key, values)
  local size = #values
  local has_many = size >= 2 * MANY
  if has_many then
    values[size + 1], values[size + 2] = values[1], values[2]
    values[1], values[2] = '0', NO_LIST
  end
  call_many('ZADD', key, values)
  if has_many then
    redis.call('ZREM', key, NO_LIST)
  end
end

--- Set fields of a hash: `values` are a field and a short value each, and are not to be used afterwards. Redis keeps a hash of up
--- to 512 short values as one list as well.
local function set_many(key, values)
  local size = #values
  local has_many = size >= 2 * MANY
  if has_many then
    values[size + 1], values[size + 2] = values[1], values[2]
    values[1], values[2] = NO_LIST, ''
  end
  call_many('HSET', key, values)
  if has_many then
    redis.call('HDEL', key, NO_LIST)
  end
end

--- The hash fields `names`, in order; false for a missing one.
local function read_many(key, names)
  local size = #names
  if size == 1 then
    return {redis.call('HGET', key, names[1])}
  elseif size <= CHUNK then
    return size > 0 and redis.call('HMGET', key, unpack(names)) or {}
  end
  local values = {}
  for from = 1, size, CHUNK do
    local last = math.min(from + CHUNK - 1, size)
    for _, value in ipairs(redis.call('HMGET', key, unpack(names, from, last))) do
      values[#values + 1] = value
    end
  end
  return values
end
