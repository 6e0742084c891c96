--[[ meta: reads and writes the queue's own facts, which are fields of `meta`. A call has the fields under Meta from its
beginning. A field under Later is read when it is asked for. Changes are written together when the call ends.

Most facts hardly ever change, so a function remembers them. A change of such a fact renews the version `v`. A call
reads `v` and the counters, and the other facts only if `v` has changed. `v` contains the server's time in microseconds,
so no two histories have the same `v`. Remembered facts are read again after a second in any case, since an operator may
write into `meta` by hand.

Keys: meta
Later: v
Kept: FACTS
Uses: memo(remember MEMO_MAX) digits(digits)
]]

local RECALL_MS = 1000   -- ms for which facts are remembered

local FACTS = {known = {}, count = 0}   -- the key of `meta` → its facts as a call has read them, and when it read them

local facts          -- name → value in `meta`, false if it has none; only fields that were read
local notes          -- other notes that are remembered together with these facts; nil if the facts are not remembered
local changes = {}   -- names and values that `write_facts` writes
local renewed        -- whether the facts have a new version in this call

local function reset()
  facts, notes, renewed = nil, nil, false
  if #changes > 0 then
    changes = {}
  end
end

--- Use the remembered facts if they are still those in Redis. Returns false if they are not, or if no facts are
--- remembered.
local function recall_facts(at)
  local known = FACTS.known[meta]
  if not known or at < known.at or at >= known.at + RECALL_MS then
    return false
  end
  local remembered = known.facts
  -- An audited queue counts its backlog in nearly every call.
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
      -- A Lua table makes room even for a name that gets nil, and counts all its entries again when it is full.
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

--- Read the fields that the headers name under Meta. A missing field is false.
local function read_facts()
  local values = redis.call('HMGET', meta, unpack(META))
  facts = {}
  for i = 1, #META do
    facts[META[i]] = values[i]
  end
end

--- Remember the facts that this call has read.
local function remember_facts(at)
  if facts.v then
    notes = {}
    remember(FACTS, meta, {at = at, facts = facts, notes = notes}, MEMO_MAX)
  end
end

--- Note that this call adds a fact that it did not read at its beginning. The next call must read this fact again.
local function note_later()
  if notes then
    notes.has_later = true
  end
end

--- Return the notes of this library about the queue, which last as long as its facts are remembered; nil if they are
--- not.
local function notes_of_queue()
  return notes
end

--- Return a numeric fact, or its default if the field is missing or is no finite number. (Lua reads nan and inf as
--- numbers.)
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

--- Read a fact that is needed after the first write, so that the call cannot fail half-way. (configure and trim read
--- some facts after a write: they called `read_facts` before, so `meta` is known to be a hash.)
local function read_now(name)
  facts[name] = fact(name)
end

--- Give the facts a version that they never had before.
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

--- Change a fact: at once for this call, and in Redis at the end of the call.
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
