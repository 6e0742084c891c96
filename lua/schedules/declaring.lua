--[[ declaring: decides the outcome of each schedule of a call. Everything is decided before anything is written.

Keys: schedules
Meta: schedules
Args: each each_count by why source spec_max what
Uses: call(now) meta(facts set_fact) emit(emit_queue) batch(call_many read_many) digits(digits)
    schedule_entries(read_schedule write_schedule job_field was_declared declared_before note_declared is_unseen)
    definition_digest(definition_digest job_digest) tick_times(read_ticks move_tick decide_ticks write_ticks)
]]

local SEEN_MS = 1800000   -- minimum ms between two notes that code has declared the same definition
local NAME_MAX = 100

local known        -- name → {its schedule, its job}; nil without one
local entries      -- fields and values that are written
local removed      -- fields to remove
local events       -- the `schedule_changed` events

local function reset()
  known, entries, removed, events = nil, {}, {}, {}
end

--- Return whether a record can be stored: no value may contain text that would break an entry.
local function is_record(name, next_at, due_at, rule, job)
  if #name > NAME_MAX or not name:find('^[%w_.:-]+$') then
    return false
  elseif what ~= 'put' and what ~= 'restore' then
    return what ~= 'resume' or next_at > 0 and due_at >= next_at
  end
  return next_at > 0 and due_at >= next_at and rule:find('^{[^\n]*}$') ~= nil and job:find('^%[[^\n]*%]\n[^\n]*\n%x[^\n]*\n{[^\n]*}$') ~= nil
end

--- Check the records, and read what is stored. Returns a reply that refuses the call, or nil.
local function check_schedules()
  local fields = {}
  for i = 1, each_count do
    local name, _, next_at, due_at, rule, job = each(i)
    if not is_record(name, next_at, due_at, rule, job) then
      return {'refused', 'arguments', 'schedule'}
    end
    fields[#fields + 1], fields[#fields + 2] = name, job_field(name)
  end
  local stored = read_many(schedules, fields)
  known = {}
  for at = 1, #fields, 2 do
    local schedule = read_schedule(stored[at])
    known[fields[at]] = schedule and stored[at + 1] and {schedule, stored[at + 1]} or nil
  end
  read_ticks(each_count)
  return nil
end

--- Return a job as JSON for an event; null if the log does not keep its arguments.
local function pack_of(job)
  local spec = job:match('\n({[^\n]*})$')
  return spec and #spec <= spec_max and cjson.encode(job) or 'null'
end

--- Change a schedule; `job` is nil unless the call has a new job.
local function change(name, old, new, job)
  known[name] = {new, job or known[name][2]}
  entries[#entries + 1], entries[#entries + 2] = name, write_schedule(new)
  if job then
    entries[#entries + 1], entries[#entries + 2] = job_field(name), job
  end
  move_tick(name, new.state == 'on' and new.due_ms)
  events[#events + 1] = '["' .. name .. '","' .. new.state .. '",' .. (old and cjson.encode(old.rule) or 'null') .. ',' ..
    cjson.encode(new.rule) .. ',' .. new.v .. ',' .. digits(new.next_ms) .. ',"' .. (what == 'release' and 'released' or source) .. '"' ..
    (job and ',' .. pack_of(job) .. ',"' .. job_digest(job) .. '"' or '') .. ']'
end

--- Remove the entry of a schedule.
local function forget(name, old)
  known[name] = nil
  removed[#removed + 1], removed[#removed + 2] = name, job_field(name)
  move_tick(name, false)
  events[#events + 1] = '["' .. name .. '","removed",' .. cjson.encode(old.rule) .. ',null,' .. digits(old.v + 1) .. ',null,"' .. source .. '"]'
end

--- Return a copy of a schedule with a new version.
local function next_version(old)
  local new = {}
  for field, value in pairs(old) do
    new[field] = value
  end
  new.v = old.v + 1
  return new
end

--- Return the time after which an instant must lie: an instant that has passed, or is in the log, does not come again.
local function floor_of(old)
  return math.max(now, old and old.last or 0)
end

--- Note that code declares a schedule, with any definition: so the schedule was not taken out of the code.
local function note_seen(name, old)
  if now - old.seen >= SEEN_MS or now < old.seen then
    old.seen = now
    entries[#entries + 1], entries[#entries + 2] = name, write_schedule(old)
  end
end

--- Code declares the stored definition: note the time, and take the new instant if it is earlier, since the clock went
--- back.
local function see(name, old, next_at, due_at)
  if old.state == 'on' and next_at < old.next_ms and next_at > floor_of(old) then
    local new = next_version(old)
    new.next_ms, new.due_ms, new.seen = next_at, due_at, now
    change(name, old, new)
  else
    note_seen(name, old)
  end
  return 'same'
end

--- Code declares a schedule whose rule was set live: note the definition, which is allowed again once the live rule is
--- released.
local function keep_live(name, old, is_same, digest)
  if not was_declared(old, digest) or now - old.seen >= SEEN_MS then
    note_declared(old, digest)
    old.seen = now
    entries[#entries + 1], entries[#entries + 2] = name, write_schedule(old)
  end
  return is_same and old.state ~= 'removed' and 'same' or 'kept'
end

--- Return the outcome of a put that is not carried out; nil for any other put.
local function put_outcome(old, is_same, version, digest)
  if what == 'restore' then
    return old and 'conflict' or nil
  elseif source == 'code' then
    if is_same and old.from == 'code' and old.state ~= 'undeclared' and old.state ~= 'removed' then
      return 'same'
    elseif old and (old.state == 'removed' or not is_same and old.state ~= 'undeclared' and was_declared(old, digest)) then
      return 'kept'
    end
  elseif version >= 0 and version ~= (old and old.v or 0) then
    return 'conflict'
  elseif is_same and old.from == 'live' then
    return 'same'
  end
  return nil
end

local function put(name, version, next_at, due_at, rule, job)
  local old, old_job = unpack(known[name] or {})
  local is_same = old ~= nil and old.rule == rule and old_job == job
  local digest = source == 'code' and definition_digest(rule, job)
  if digest and old and old.from == 'live' then
    return keep_live(name, old, is_same, digest)
  end
  local outcome = put_outcome(old, is_same, version, digest)
  if outcome == 'same' and source == 'code' then
    return see(name, old, next_at, due_at)
  elseif outcome then
    if outcome == 'kept' then
      note_seen(name, old)
    end
    return outcome
  elseif next_at <= floor_of(old) then
    return 'late'
  end
  local new = {
    state = old and old.state == 'paused' and 'paused' or 'on', v = (old and old.v or what == 'restore' and version or 0) + 1,
    next_ms = next_at, due_ms = due_at,
    last = old and old.last or 0, from = source, seen = source == 'code' and now or old and old.seen or 0,
    was = old and old.was or '', rule = rule,
  }
  if digest and old and was_declared(old, digest) then
    -- The code was taken back to this definition, and no newer code has declared the schedule for hours.
    new.was = declared_before(old, digest)
  elseif old and old.from == 'code' and (not is_same or source == 'live') then
    note_declared(new, definition_digest(old.rule, old_job))
  end
  change(name, old, new, job)
  return 'changed'
end

local function pause(name, old)
  if old.state == 'paused' then
    return 'same'
  end
  local new = next_version(old)
  new.state = 'paused'
  change(name, old, new)
  return 'changed'
end

local function resume(name, old, next_at, due_at)
  if old.state == 'on' then
    return 'same'
  elseif next_at <= floor_of(old) then
    return 'late'
  end
  local new = next_version(old)
  -- From now on the schedule needs no code. So the event has its job, as for any rule that is set live.
  local is_adopted = old.state == 'undeclared'
  new.from = is_adopted and 'live' or old.from
  new.state, new.next_ms, new.due_ms, new.seen = 'on', next_at, due_at, old.from ~= 'live' and now or old.seen
  change(name, old, new, is_adopted and known[name][2] or nil)
  return 'changed'
end

--- Remove a schedule. Its entry stays while code may still declare the schedule, so that code does not bring it back.
local function remove(name, old)
  if old.state == 'undeclared' or is_unseen(old, now) then
    forget(name, old)
    return 'changed'
  elseif old.state == 'removed' then
    return 'same'
  end
  local new = next_version(old)
  new.state = 'removed'
  change(name, old, new)
  return 'changed'
end

--- Give a rule that was set live back to code: it holds until a worker declares another one. Code may then set the
--- definition that it declared last, but not the ones before.
local function release(name, old)
  if old.from ~= 'live' or old.was == '' then
    return old.from == 'live' and 'undeclared' or 'same'
  end
  local new = next_version(old)
  new.from, new.seen, new.was = 'released', now, old.was:match('^(.*),%x+$') or ''
  change(name, old, new)
  return 'changed'
end

--- Decide about a record. Returns its outcome.
local function decide_schedule(i)
  local name, version, next_at, due_at, rule, job = each(i)
  local old = known[name] and known[name][1]
  if what == 'put' or what == 'restore' then
    return put(name, version, next_at, due_at, rule, job)
  elseif not old or old.state == 'removed' and (what == 'pause' or what == 'release') then
    return 'gone'
  elseif version >= 0 and version ~= old.v then
    return 'conflict'
  elseif what == 'seen' then
    if old.from ~= 'code' or old.state == 'undeclared' or old.state == 'removed' then
      return 'conflict'
    end
    return see(name, old, old.next_ms, old.due_ms)
  elseif what == 'pause' then
    return pause(name, old)
  elseif what == 'resume' then
    return resume(name, old, next_at, due_at)
  elseif what == 'release' then
    return release(name, old)
  end
  return remove(name, old)
end

--- Decide about all records. Returns the answer.
local function decide_schedules()
  local answer = {}
  for i = 1, each_count do
    local name = each(i)
    local outcome = decide_schedule(i)
    local schedule = known[name] and known[name][1]
    answer[#answer + 1], answer[#answer + 2] = name, outcome
    answer[#answer + 1] = digits(schedule and schedule.v or 0)
    answer[#answer + 1] = digits(outcome == 'late' and floor_of(schedule) or schedule and schedule.next_ms or 0)
  end
  decide_ticks()
  return answer
end

--- Append the events, and write.
local function write_schedules()
  for i = 1, #events do
    emit_queue('schedule_changed', now, by, events[i], why)
  end
  call_many('HSET', schedules, entries)
  call_many('HDEL', schedules, removed)
  write_ticks()
  if not facts.schedules then
    set_fact('schedules', '1')
  end
end
