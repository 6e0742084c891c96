--[[ repair: carry out what the doctor derived from a snapshot: plain edits of single members. All edits of one finding
are made, or none if one of their members is no longer as it WAS in the snapshot: then the queue has moved on, and the
doctor looks again. So a queue is mended while it works. Sending it twice is harmless.

An edit names a member of KEY, the value that it WAS, and the VALUE that it gets; empty stands for none. The same value twice
only says what must not have moved. WAS `<` is any lower number. A score that begins with `+` counts from now on.
Some keys are edited in their own way. `line` is how a job stands (its line in `state`, else what `jobs` says of one that
only waits), `head` the first member of `waiting` in a lane; neither is written. `ready:N`: the
id goes to the head of the list, by its place in line, VALUE; an entry too many is harmless, since claim passes over it.
`outbox`: a baseline event of the job. `wake`: one token is left, whatever the edits are.

Flags: allow-oom
Keys: meta state jobs ready waiting lanes open blocked holders rates fair scheduled leases dead expiring slots results kept returned outbox wake
Meta: epoch
Args: by
Each: finding:int key member was value
Unread: ready
Uses: clock(clock_ms) meta(read_facts write_facts facts set_fact renew) epoch(same_history) emit(emit) state(read_line)
    standing(read_lines) ready(return_ready) wake(wake_needed push_token) batch(call_many) baseline_of(baseline_of)
Returns: ok MENDED | epoch. MENDED is how many findings
Invariants: I8, I10
]]

read_facts()
if not same_history(facts) then
  return {'epoch'}
end
local now = clock_ms()
check_keys()
wake_needed()

local hashes = {
  meta = meta, state = state, jobs = jobs, lanes = lanes, rates = rates, slots = slots, results = results, returned = returned,
}
local sets = {
  waiting = waiting, open = open, blocked = blocked, holders = holders, fair = fair,
  scheduled = scheduled, leases = leases, dead = dead, expiring = expiring, kept = kept,
}

--- A member's value, empty if there is none; nil for what has no members of its own.
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

--- Whether a member is as it was.
local function has_kept(key, member, was, value)
  local is = read_member(key, member)
  if was == '<' then
    return (tonumber(is) or -1) < tonumber(value)
  end
  return not is or is == was or sets[key] and tonumber(is) and tonumber(is) == tonumber(was)
end

local moved = {}          -- findings of which something has moved
for i = 1, each_count do
  local finding, key, member, was, value = each(i)
  if not has_kept(key, member, was, value) then
    moved[finding] = true
  end
end

local given, removed = {}, {}

--- Note what becomes of a member, for the writes at the end.
local function note(key, member, value)
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
    local score = value:sub(1, 1) == '+' and string.format('%.0f', now + value) or value
    list[#list + 1], list[#list + 2] = score, member
  end
end

local events, listed, lines = {}, {[0] = {}, {}, {}, {}}, {}
local mended, known = 0, {}
for i = 1, each_count do
  local finding, key, member, was, value = each(i)
  if not moved[finding] then
    if not known[finding] then
      known[finding], mended = true, mended + 1
    end
    local list = listed[tonumber(key:match('^ready:(%d)$'))]
    if list then
      list[#list + 1] = {member, tonumber(value)}
    elseif key == 'outbox' then
      events[#events + 1] = baseline_of(member, read_line(lines[member]))
    elseif value ~= was then
      note(key, member, value)
    end
    if key == 'line' or key == 'state' then
      lines[member] = value ~= '' and value
    end
  end
end

emit('baseline', now, by, events)
for name, key in pairs(hashes) do
  call_many('HDEL', key, removed[name])
  call_many('HSET', key, given[name])
end
for name, key in pairs(sets) do
  call_many('ZREM', key, removed[name])
  call_many('ZADD', key, given[name])
end
for list = 0, 3 do
  return_ready(list, listed[list])
end
redis.call('LTRIM', wake, 0, 0)
write_facts()
push_token()
return {'ok', mended}
