--[[ changing: decides the outcome of each record of a `cap` call, and which jobs the new limits admit. Everything is
decided before anything is written.

Keys: state caps leases scheduled
Later: caps_by_task
Args: each each_count by why source
Unread: scheduled
Uses: call(now) meta(set_fact) emit(emit_queue quoted) state(read_line write_line rank is_claimed) entries(read_entry write_entry has_declared declare)
    scopes(scope_of assume_limit hold_uncounted await_no_more) lane_opening(reevaluate reevaluate_family FAMILY_MAX)
    lane_write(check_lanes write_lanes) queue_cap(queue_cap) wake(wake_needed) batch(call_many read_many)
]]

local stored         -- by record: the entry of its scope
local entries, removed   -- scopes with the entries to write, and scopes whose entries are removed
local changed        -- the `cap_changed` events
local first, sweeps  -- scopes of tasks that had no cap, and scopes or families to re-evaluate
local lines          -- ids and lines of running jobs that hold a new scope
local unfinished     -- times and members of `scheduled` at which claims continue with a family
local queue_before, claimed   -- the queue's cap before the call, and the number of claimed jobs

local function reset()
  stored, queue_before, claimed = nil, nil, nil
  entries, removed, changed, first, sweeps, lines, unfinished = {}, {}, {}, {}, {}, {}, {}
end

--- Check the records, and read what is stored. Returns a reply that refuses the call, or nil.
local function check_caps()
  local names = {}
  for i = 1, each_count do
    local scope, limit = each(i)
    if scope == 'task' or scope == 'fair' or scope == 'weight' or
        not (limit == 'none' or limit == 'code' or limit:match('^%d+$') or limit:match('^%d+/%d+ms/%d+$')) then
      return {'refused', 'arguments', scope}
    end
    names[i] = scope
  end
  stored = read_many(caps, names)
  check_keys()
  queue_before, claimed = queue_cap(), redis.call('ZCARD', leases)
  return nil
end

--- Let the running jobs of a task hold its new scope, and write the scope into their lanes.
local function count_running(scope)
  local task = scope:sub(6)
  local ids = redis.call('ZRANGE', leases, 0, -1)
  local held = read_many(state, ids)
  for i, id in ipairs(ids) do
    local line = held[i]
    local job = line and line:find(' ' .. scope .. ' ', 1, true) and read_line(line)
    if job and job.task == task and is_claimed(job) and
        not ((job.lane or '') .. '+'):find('+' .. scope .. '+', 1, true) then
      local lane = job.lane or tostring(rank(job))
      job.lane = lane:sub(1, 1) .. '+' .. scope .. lane:sub(2)
      lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
      hold_uncounted(scope, id)
    end
  end
end

--- Return the limit that code declares for a scope whose live limit ends, and whether it is that of the scope's family;
--- nil if code declares no limit.
local function declared_limit(scope, old)
  if old and old.code then
    return old.code, false
  end
  local family = scope:match('^([^=]+)=')
  local above = family and read_entry(redis.call('HGET', caps, family))
  return above and above.limit, true
end

--- Return the outcome of a record. `gone` is true if the scope returns to its family's limit.
local function outcome_of(old, limit, version, origin, gone)
  if gone and not old or old and not gone and old.limit == limit and (old.source == origin or source == 'code') then
    return 'same'
  elseif source == 'code' and old and (old.source == 'live' or has_declared(old, limit)) then
    return 'kept'
  elseif version >= 0 and version ~= (old and old.version or 0) then
    return 'conflict'
  end
  return 'changed'
end

--- Note which scopes and families to re-evaluate, or wake a worker, since a new limit may admit more jobs.
local function note_room(scope, limit, old)
  if scope == 'queue' then
    local most = tonumber(limit)
    if queue_before ~= nil and claimed >= queue_before and (not most or claimed < most) then
      wake_needed()
    end
  elseif scope:sub(1, 7) ~= 'weight=' then
    local by_task = scope:sub(1, 5) == 'task='
    if by_task or scope:find('=', 1, true) then
      set_fact(by_task and 'caps_by_task' or 'caps_by_key', 1)
    end
    if by_task and not old then
      first[#first + 1] = scope
    end
    sweeps[#sweeps + 1] = scope
  end
end

--- Give a scope another limit. Returns its new entry.
local function change(scope, limit, old, origin, gone)
  local entry = {
    limit = limit, version = (old and old.version or 0) + 1, source = origin, was = old and old.was or '',
    code = old and old.code, set = origin == 'live' and ' by=' .. by .. ' at=' .. now or '',
  }
  if source == 'code' then
    declare(entry, limit)
  end
  changed[#changed + 1] = '["' .. scope .. '",' .. quoted(old and old.limit) .. ',' ..
    (gone and 'null' or '"' .. limit .. '"') .. ',' .. entry.version .. ']'
  -- A scope whose entry is removed is re-evaluated with its family's limit.
  assume_limit(scope, limit)
  if gone then
    removed[#removed + 1] = scope
    entry.version = 0
  else
    entries[#entries + 1], entries[#entries + 2] = scope, write_entry(entry)
  end
  note_room(scope, limit, old)
  return entry
end

--- Decide about a record. Returns its outcome and the entry that is stored after the call; or nil and a reply that
--- refuses the call.
local function decide_cap(i)
  local scope, limit, version = each(i)
  local old, origin, gone = read_entry(stored[i]), source, false
  if limit == 'code' then
    origin = 'code'
    limit, gone = declared_limit(scope, old)
    if not limit then
      return nil, {'refused', 'undeclared', scope}
    end
  end
  local outcome = outcome_of(old, limit, version, origin, gone)
  local now_stored = old or {limit = gone and limit or 'none', version = 0}
  if outcome == 'changed' then
    now_stored = change(scope, limit, old, origin, gone)
  end
  if source == 'code' and old and old.source == 'live' and not has_declared(old, limit) then
    declare(old, limit)
    entries[#entries + 1], entries[#entries + 2] = scope, write_entry(old)
  end
  return outcome, now_stored
end

--- Re-evaluate the scopes and families with new limits, as if these were stored.
local function let_in()
  for _, scope in ipairs(first) do
    count_running(scope)
  end
  for _, scope in ipairs(sweeps) do
    if scope:find('=', 1, true) then
      await_no_more(scope_of(scope))
      reevaluate(scope)
    else
      local last = reevaluate_family(scope, '', FAMILY_MAX)
      if last then
        wake_needed()
        unfinished[#unfinished + 1], unfinished[#unfinished + 2] = now, 'caps|' .. scope .. '|' .. last
      end
    end
  end
end

--- Decide about all records. Returns a reply that refuses the call, or nil; and the answer.
local function decide_caps()
  local answer = {}
  for i = 1, each_count do
    local outcome, entry = decide_cap(i)
    if not outcome then
      return entry, nil
    end
    local scope = each(i)
    for _, value in ipairs({scope, outcome, entry.version, entry.limit}) do
      answer[#answer + 1] = value
    end
  end
  let_in()
  check_lanes()
  return nil, answer
end

--- Append the events, and write.
local function write_caps()
  for i = 1, #changed do
    emit_queue('cap_changed', now, by, changed[i], why)
  end
  call_many('HSET', caps, entries)
  call_many('HDEL', caps, removed)
  call_many('HSET', state, lines)
  call_many('ZADD', scheduled, unfinished)
  write_lanes()
end
