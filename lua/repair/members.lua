--[[ members: reads and writes single members of keys, as the doctor's edits name them.

Keys: meta state jobs waiting lanes open blocked holders rates fair scheduled leases parked dead expiring slots results kept returned schedules ticks boxes shown
Uses: meta(set_fact renew) stored_lines(read_lines) batch(call_many)
]]

local hashes, sets     -- key's name → the key: hashes, and sorted sets
local given, removed   -- key's name → the members that it gets, with values; and the members to remove

local function reset()
  hashes, sets, given, removed = nil, nil, {}, {}
end

--- Group the keys of this call by type: hashes, and sorted sets.
local function name_keys()
  hashes = {
    meta = meta, state = state, jobs = jobs, lanes = lanes, rates = rates, slots = slots, results = results, returned = returned,
    schedules = schedules, boxes = boxes, shown = shown,
  }
  sets = {
    waiting = waiting, open = open, blocked = blocked, holders = holders, fair = fair,
    scheduled = scheduled, leases = leases, parked = parked, dead = dead, expiring = expiring, kept = kept, ticks = ticks,
  }
end

--- Return a member's value, empty if it has none; nil for a key whose members have no names.
local function read_member(key, member)
  if hashes[key] then
    return redis.call('HGET', hashes[key], member) or ''
  elseif sets[key] then
    return redis.call('ZSCORE', sets[key], member) or ''
  elseif key == 'line' then
    return read_lines({member})[1] or ''
  elseif key == 'head' then
    return redis.call('ZRANGEBYLEX', waiting, '[' .. member .. '|', '(' .. member .. '}', 'LIMIT', 0, 1)[1] or ''
  end
end

--- Return whether a member still has the value that it had.
local function has_kept(key, member, was, value)
  local is = read_member(key, member)
  if was == '<' then
    return (tonumber(is) or -1) < tonumber(value)
  end
  return not is or is == was or sets[key] and tonumber(is) and tonumber(is) == tonumber(was)
end

--- Note a member's new value, which is written at the end. A score that begins with `+` counts from `at`.
local function note_member(key, member, value, at)
  if key == 'meta' then
    renew()
    if value ~= '' then
      set_fact(member, value)
      return
    end
  end
  local noted = value == '' and removed or given
  local list = noted[key] or {}
  noted[key] = list
  if value == '' then
    list[#list + 1] = member
  elseif hashes[key] then
    list[#list + 1], list[#list + 2] = member, value
  elseif sets[key] then
    local score = value:sub(1, 1) == '+' and string.format('%.0f', at + value) or value
    list[#list + 1], list[#list + 2] = score, member
  end
end

--- Write all noted members.
local function write_members()
  for name, key in pairs(hashes) do
    call_many('HDEL', key, removed[name])
    call_many('HSET', key, given[name])
  end
  for name, key in pairs(sets) do
    call_many('ZREM', key, removed[name])
    call_many('ZADD', key, given[name])
  end
end
