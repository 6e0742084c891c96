--[[ meta: the queue's own facts. Those under Meta are read at once when a call begins, those under Later when they are
asked for; changes are written at once when it ends.

Keys: meta
]]

local facts        -- name → what meta has, false if nothing; those that were read
local changes = {} -- names and values that `write_facts` writes

local function reset()
  facts = {}
  if #changes > 0 then
    changes = {}
  end
end

--- Read the fields that the headers name under Meta. One that is not there is false.
local function read_facts()
  local values = redis.call('HMGET', meta, unpack(META))
  for i = 1, #META do
    facts[META[i]] = values[i]
  end
end

--- A numeric fact, or its default.
local function fact(name)
  local value = facts[name]
  if value == nil then
    value = redis.call('HGET', meta, name)
    facts[name] = value
  end
  return value and tonumber(value) or SETTINGS[name] or 0
end

--- Read a fact before the first write that is needed after it: no call is to fail half-way. (Some facts are read after a
--- write all the same, in configure and trim: as `read_facts` came first, `meta` is known to be a hash.)
local function read_now(name)
  facts[name] = fact(name)
end

--- Change a fact, from now on in this call and, at its end, in Redis.
local function set_fact(name, value)
  facts[name] = value
  changes[#changes + 1] = name
  changes[#changes + 1] = value
end

local function write_facts()
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
end
