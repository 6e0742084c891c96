--[[ batch: sends one command for many values, within the 8,000 slots of Lua's stack. ]]

local CHUNK = 4000   -- even, so that no pair of a score and a member, or of a field and a value, is split

--- Call `command key value…` for all values, with as few calls as the stack allows; with no values, do not call it.
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

local MANY = 16                       -- number of members from which it pays to avoid the list
local NO_LIST = ('~'):rep(65)         -- a member that is too long for a list in Redis; nothing has this name

--- Add members to a sorted set. `values` are pairs of a score and a member; the caller must not use them afterwards.
--- Redis keeps a set of up to 128 members as one list, which it searches from the front for each member that is added.
--- A member that is too long for a list makes Redis convert the set for good. So if many members are added, such a
--- member is added first, and removed at the end. It takes the place of the first pair, which is moved to the end: the
--- order in which members are added does not matter.
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

--- Set fields of a hash. `values` are pairs of a field and a short value; the caller must not use them afterwards.
--- Redis also keeps a hash of up to 512 short values as one list.
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

--- Return the hash fields `names`, in order; false for a missing one.
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
