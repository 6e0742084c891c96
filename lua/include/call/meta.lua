--[[ meta: the queue's own facts. Those under Meta are there when a call begins, those under Later are read when they are
asked for; changes are written at once when the call ends.

Most facts hardly ever change, so a function remembers them. What changes one of them renews the version `v`; a call reads `v`
and the counters, and the others only if `v` is another one. `v` has the server's time in microseconds, so no two histories
share one. What was remembered is read again after a second all the same: an operator may write into `meta` by hand.

Keys: meta
Later: v
Kept: FACTS
Uses: memo(remember MEMO_MAX) digits(digits)
]]

local RECALL_MS = 1000   -- how long facts are remembered

local FACTS = {known = {}, count = 0}   -- the key of `meta` → its facts as a call has read them, and when that was

local facts          -- name → what meta has, false if nothing; those that were read
local notes          -- what else is remembered as long as these facts are; nil if they are not
local changes = {}   -- names and values that `write_facts` writes
local renewed        -- whether they have a new version

local function reset()
  facts, notes, renewed = nil, nil, false
  if #changes > 0 then
    changes = {}
  end
end

--- Go on with the facts that are remembered, if they still are those of Redis. False if they are not, or none are.
local function recall_facts(at)
  local known = FACTS.known[meta]
  if not known or at < known.at or at >= known.at + RECALL_MS then
    return false
  end
  local remembered = known.facts
  -- A queue that is audited counts its backlog in nearly every call.
  local audited = remembered.audit == 'on'
  local counted
  if audited then
    counted = redis.call('HMGET', meta, unpack(AUDITED))
  else
    counted = redis.call('HMGET', meta, unpack(META, 1, COUNTED))
  end
  if counted[1] ~= remembered.v then
    return false
  end
  facts, notes = remembered, known.notes
  local names = audited and AUDITED or META
  if notes.has_later then
    notes.has_later = false
    for i = 1, #LATER do
      -- Lua takes room in a table for a name that gets nil, too, and counts the whole table again when it is full.
      if facts[LATER[i]] ~= nil then
        facts[LATER[i]] = nil
      end
    end
  end
  for i = 2, audited and #AUDITED or COUNTED do
    facts[names[i]] = counted[i]
  end
  return true
end

--- Read the fields that the headers name under Meta. One that is not there is false.
local function read_facts()
  local values = redis.call('HMGET', meta, unpack(META))
  facts = {}
  for i = 1, #META do
    facts[META[i]] = values[i]
  end
end

--- Remember the facts that were read.
local function remember_facts(at)
  if facts.v then
    notes = {}
    remember(FACTS, meta, {at = at, facts = facts, notes = notes}, MEMO_MAX)
  end
end

--- A fact is going to be known that the call has not read when it began: the next call is to read it again.
local function note_later()
  if notes then
    notes.has_later = true
  end
end

--- What this library notes of the queue, as long as its facts are remembered; nil if they are not.
local function notes_of_queue()
  return notes
end

--- A numeric fact, or its default: also where `meta` has nan or inf, which Lua reads as numbers.
local function fact(name)
  local value = facts[name]
  if value == nil then
    note_later()
    value = redis.call('HGET', meta, name)
    facts[name] = value
  end
  local numeric = value and tonumber(value)
  return numeric and numeric - numeric == 0 and numeric or SETTINGS[name] or 0
end

--- Read a fact before the first write that is needed after it: no call is to fail half-way. (Some facts are read after a
--- write all the same, in configure and trim: as `read_facts` came first, `meta` is known to be a hash.)
local function read_now(name)
  facts[name] = fact(name)
end

--- The facts get a version that they have never had.
local function renew()
  if renewed then
    return
  end
  renewed = true
  FACTS.known[meta] = nil
  local time = redis.call('TIME')
  local count = tonumber((facts.v or ''):match('^%d+')) or 0
  changes[#changes + 1], changes[#changes + 2] = 'v', digits(count + 1) .. '.' .. time[1] .. '.' .. time[2]
end

--- Change a fact, from now on in this call and, at its end, in Redis.
local function set_fact(name, value)
  if not COUNTERS[name] then
    renew()
  end
  if facts[name] == nil then
    note_later()
  end
  facts[name] = value
  changes[#changes + 1], changes[#changes + 2] = name, type(value) == 'number' and digits(value) or value
end

local function write_facts()
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
end
