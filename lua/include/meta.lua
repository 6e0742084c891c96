--[[ meta: the queue's own facts, read at once when a call begins and written at once when it ends.

Keys: meta
]]

local facts = {}
local changes = {}

--- Read the fields that the script's header names under Meta.
local function read_facts()
  local values = redis.call('HMGET', meta, unpack(META))
  for i = 1, #META do
    facts[META[i]] = values[i] or nil
  end
end

--- A numeric fact, or its default.
local function fact(name)
  return tonumber(facts[name]) or SETTINGS[name] or 0
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
