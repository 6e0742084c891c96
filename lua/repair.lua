--[[ repair: make a queue's indexes and its log agree with `state` again, record by record. `doctor` finds what does
not agree and says what to do; what a script broken in mid-write or a careless hand left behind is mended here.
Sending it twice is harmless.

A record's kind is one of these; its name is the id, the member or the field.
`job`: it is put where its state says. `line` is written as its state if that still reads as it `was` (nothing: there is
none); `relog` 1 appends a baseline event of the job; `relist` 1 puts it, if it is ready and has no lane, at the head of
its list: an entry too many is harmless, since claim passes over it.
`waiting`, `holder`, `blocked`: a member of that index; it goes, unless it is right by now.
`lane`: it is opened where its first job stands, whatever it was; claim finds out what it waits for. Without jobs it goes.
`rate`: how far it was spent, and when that may be forgotten, are found from each other. `fair`: a key that was served
until `line`. `meta`: a fact that says that limits are stored. `slot`: a call slot that would not be forgotten in time.
`scheduled`, `expiring`: a member of that index that leads nowhere.

Flags: allow-oom
Keys: meta state jobs ready waiting lanes open blocked holders caps rates fair scheduled leases dead expiring slots
    outbox wake
Meta: epoch sequence lease_ms tombstones dead_retention_ms
Args: by sequence_min:int tombstones_now:int
Each: kind name relog:int relist:int was line
Unread: jobs ready waiting open blocked lanes holders caps rates fair scheduled leases dead expiring
Uses: clock(clock_ms) meta(fact set_fact read_facts write_facts facts) epoch(same_history) emit(emit) ready(return_ready)
    state(read_line count rank is_claimed) scopes(is_counted) place(padded) lane_names(RANK) lane_fair(order_of finish_of)
    dead(unindex_dead) wake(wake_needed push_token) batch(call_many read_many) baseline_of(baseline_of)
Returns: ok REPAIRED | epoch. TOMBSTONES_NOW below 0 leaves their number as it is
Invariants: I8, I10
]]

read_facts()
if not same_history(facts) then
  return {'epoch'}
end
local now = clock_ms()
local names = {}
for i = 1, each_count do
  local kind, name = each(i)
  -- What is said of a member is decided by its job's state.
  names[i] = (kind == 'waiting' or kind == 'holder') and name:match('[^|]*$') or name
end
local lines, held = read_many(state, names), read_many(slots, names)
check_keys()
wake_needed()

local events, written, stands = {}, {}, {}
for i, name in ipairs(names) do
  local kind, _, relog, _, was, line = each(i)
  if kind == 'job' then
    if line ~= '' and (lines[i] or '') == was then
      lines[i] = line
      written[#written + 1], written[#written + 2] = name, line
    end
    stands[name] = lines[i]
    if relog == 1 then
      events[#events + 1] = baseline_of(name, read_line(lines[i]))
    end
  end
end

--- Where a job waits; nil if it does not, or not in a lane.
local function place_in_lane(id, job)
  return job and job.state == 'ready' and job.lane and job.lane .. '|' .. padded(count(job, 'seq')) .. '|' .. id
end

--- Whether a job counts in a scope.
local function is_held(job, scope)
  return job and is_claimed(job) and job.lane and is_counted(scope) and
    (job.lane .. '+'):find('+' .. scope .. '+', 1, true) ~= nil
end

-- Members of `waiting` and `holders` that come and go.
local joining, leaving, firsts, counted, uncounted = {}, {}, {}, {}, {}
local reopened, lane_names, unblocked = {}, {}, {}
for i, name in ipairs(names) do
  local kind, member = each(i)
  local job = read_line(stands[name] or lines[i])
  if kind == 'job' and place_in_lane(name, job) then
    joining[#joining + 1], joining[#joining + 2] = 0, place_in_lane(name, job)
    firsts[job.lane] = math.min(firsts[job.lane] or math.huge, count(job, 'seq'))
    lane_names[#lane_names + 1] = job.lane
  elseif kind == 'job' and job and job.lane then
    for scope in job.lane:gmatch('%+([^+]+)') do
      if is_held(job, scope) then
        counted[#counted + 1], counted[#counted + 2] = 0, scope .. '|' .. name
      else
        uncounted[#uncounted + 1] = scope .. '|' .. name
      end
    end
  elseif kind == 'waiting' and place_in_lane(name, job) ~= member then
    leaving[#leaving + 1], leaving[member] = member, true
  elseif kind == 'holder' and not is_held(job, member:sub(1, -#name - 2)) then
    uncounted[#uncounted + 1] = member
  elseif kind == 'lane' then
    reopened[name] = true
    lane_names[#lane_names + 1] = name
  elseif kind == 'blocked' then
    lane_names[#lane_names + 1] = member:match('^[^|]*|[^|]*|(.*)$') or ''
  end
end

--- The place in line of a lane's first job, with what this call changes; nil if there is none.
local function first_in(name)
  local offset, first = 0, firsts[name]
  while true do
    local members = redis.call('ZRANGEBYLEX', waiting, '[' .. name .. '|', '(' .. name .. '}', 'LIMIT', offset, 100)
    for _, member in ipairs(members) do
      local seq = tonumber(member:match('|(%d+)|[^|]*$'))
      if seq and not leaving[member] then
        return math.min(seq, first or seq)
      end
    end
    if #members == 0 then
      return first
    end
    offset = offset + #members
  end
end

-- Where lanes stand.
local opening, gone, places, place_of, seen = {}, {}, {}, {}, {}
for i, place in ipairs(read_many(lanes, lane_names)) do
  local name = lane_names[i]
  if not seen[name] then
    seen[name], place_of[name] = true, place
    local lane_rank = tonumber(name:match('^%d'))
    local seq = lane_rank and first_in(name)
    local where, on, order = (place or ''):match('^(%l+) ?(%S*) (%d+)$')
    local settled = where and lane_rank and (fact('fair') == 1 or tonumber(order) == lane_rank * RANK + (seq or 0))
    if not seq and (place or reopened[name]) or seq and (reopened[name] or not settled) then
      if where == 'blocked' then
        unblocked[#unblocked + 1] = on .. '|' .. order .. '|' .. name
      end
      place_of[name] = nil
      if seq then
        local at = order_of(name, seq)
        opening[#opening + 1], opening[#opening + 2] = string.format('%.0f', at), name
        places[#places + 1], places[#places + 2] = name, 'open ' .. padded(at)
      else
        gone[#gone + 1] = name
      end
    end
  end
end

-- Rates, turns and facts; members of `blocked` that lead nowhere.
local arrivals, deadlines, forgotten, turns = {}, {}, {}, {}
for i = 1, each_count do
  local kind, name, _, _, _, line = each(i)
  if kind == 'blocked' then
    local on, order, lane = name:match('^([^|]*)|([^|]*)|(.*)$')
    if not on or place_of[lane] ~= 'blocked ' .. on .. ' ' .. order then
      unblocked[#unblocked + 1] = name
    end
  elseif kind == 'rate' then
    local arrival = tonumber(redis.call('HGET', rates, name))
    local mark = tonumber(redis.call('ZSCORE', expiring, 'rate|' .. name))
    if arrival then
      deadlines[#deadlines + 1], deadlines[#deadlines + 2] = math.ceil(arrival / 1000), 'rate|' .. name
    elseif mark then
      arrivals[#arrivals + 1], arrivals[#arrivals + 2] = name, string.format('%.0f', mark * 1000)
    else
      forgotten[#forgotten + 1] = name
    end
  elseif kind == 'fair' then
    if finish_of(name) < (tonumber(line) or 0) then
      turns[#turns + 1], turns[#turns + 2] = line, name
    end
  elseif kind == 'meta' and (name == 'caps_by_task' or name == 'caps_by_key') then
    set_fact(name, 1)
  end
end

--- Put a job where its line says that it is, and nowhere else; lanes and holders are seen to by themselves.
local function settle_job(id, job, relist)
  if not job then
    redis.call('HDEL', jobs, id)
  end
  if job and is_claimed(job) then
    redis.call('ZADD', leases, 'NX', now + fact('lease_ms'), id)
  else
    redis.call('ZREM', leases, id)
  end
  if job and job.state == 'scheduled' then
    redis.call('ZADD', scheduled, job.due or now, 'job|' .. id)
  else
    redis.call('ZREM', scheduled, 'job|' .. id)
  end
  if job and job.state == 'dead' then
    local died = tonumber(job.since) or now
    redis.call('ZADD', dead, died, id)
    redis.call('ZADD', expiring, 'NX', died + fact('dead_retention_ms'), 'dead|' .. id)
  else
    unindex_dead({id})
  end
  if job and job.state == 'ready' and relist == 1 and not job.lane then
    return_ready(rank(job), {{id, count(job, 'seq')}})
  end
end

emit('baseline', now, by, events)
call_many('HSET', state, written)
for i, name in ipairs(names) do
  local kind, _, _, relist = each(i)
  if kind == 'job' then
    settle_job(name, read_line(lines[i]), relist)
  elseif kind == 'slot' and held[i] then
    local deadline = tonumber(held[i]:match('^%d+ (%d+)')) or now + SLOT_LIFE_MS
    redis.call('ZADD', expiring, deadline, 'slot|' .. name)
  elseif kind == 'scheduled' then
    redis.call('ZREM', scheduled, name)
  elseif kind == 'expiring' then
    redis.call('ZREM', expiring, name)
  end
end
call_many('ZREM', waiting, leaving)
call_many('ZADD', waiting, joining)
call_many('ZREM', holders, uncounted)
call_many('ZADD', holders, counted)
call_many('ZREM', blocked, unblocked)
call_many('ZREM', open, gone)
call_many('ZADD', open, opening)
call_many('HDEL', lanes, gone)
call_many('HSET', lanes, places)
call_many('HDEL', rates, forgotten)
call_many('HSET', rates, arrivals)
call_many('ZADD', expiring, deadlines)
call_many('ZADD', fair, turns)
if fact('sequence') < sequence_min then
  set_fact('sequence', sequence_min)
end
if tombstones_now >= 0 then
  set_fact('tombstones', tombstones_now)
end
redis.call('LTRIM', wake, 0, 0)
write_facts()
push_token()
return {'ok', #names}
