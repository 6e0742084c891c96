--[[ firing: decides the outcome of each instant that a worker reports, and which schedules the worker gets next.
Everything is decided before anything is written. Jobs are accepted by the same code as in `enqueue`
(enqueue/accepting).

Keys: schedules state holders
Later: schedules_missed
Args: each each_count by why hand_max
Uses: call(now now_text) meta(fact read_now set_fact) emit(emit quoted) batch(call_many read_many) digits(digits) state(read_line write_line) kinds(kinds_from)
    accepting(check_records decide_records emit_records write_records)
    schedule_entries(read_schedule write_schedule job_field is_undeclared)
    tick_times(read_ticks move_tick due_ticks decide_ticks write_ticks)
]]

local HAND_MS = 5000     -- ms after which a schedule is given out again if its instant is not reported
local LATER_MS = 60000   -- the same for a schedule that the worker cannot compute

local known         -- name → its schedule, and its job as `schedules` has it
local told          -- by record: its outcome, and the other fields of its event
local wanted        -- the jobs to enqueue: id, place of the kind, digest, lane and JSON of each
local kinds         -- the kinds of these jobs
local of_job        -- the record of each of these jobs
local entries       -- fields and values that are written
local events        -- the event's part about each instant
local stopped       -- ids and lines of jobs that are asked to stop
local requests      -- the event's part about each of these jobs
local handed        -- names and entries of the schedules that the worker gets
local passed_over   -- number of missed instants

local function reset()
  known, told, wanted, kinds, of_job, entries, events, stopped, requests, handed = nil, nil, nil, nil, nil, nil, nil, nil, nil, nil
  passed_over = 0
end

--- Split the job of a schedule. Returns its kind, digest, lane and JSON; nil if it cannot be read.
local function read_job(packed)
  local text, lane, digest, spec = (packed or ''):match('^([^\n]*)\n([^\n]*)\n([^\n]*)\n(.*)$')
  local by_place = text and kinds_from('[' .. text .. ']')
  local kind = by_place and by_place['1']
  if not kind or kind.remember or not digest:find(kind.unique and '^%x+ [%w_.:~%%/=,-]+$' or '^%x+$') then
    return nil
  end
  return kind, digest, lane, spec
end

local function read_schedules()
  local fields = {}
  for i = 1, each_count do
    local name = each(i)
    fields[#fields + 1], fields[#fields + 2] = name, job_field(name)
  end
  local stored = read_many(schedules, fields)
  known = {}
  for at = 1, #fields, 2 do
    known[fields[at]] = {read_schedule(stored[at]), stored[at + 1]}
  end
end

--- Return the outcome that keeps an instant from being accepted; nil if it is accepted. `shift` is the part of `spread`
--- that is added to each instant.
local function instant_outcome(schedule, expected, fired, next_at, shift)
  if schedule.state ~= 'on' or schedule.next_ms ~= expected then
    return 'already'
  elseif next_at == 0 then
    return 'later'
  elseif expected >= next_at or fired ~= 0 and (fired < expected or fired >= next_at) then
    return 'refused'
  elseif math.max(expected, fired) + shift > now then
    return 'early'
  end
  return nil
end

--- Note the job of this instant, which is enqueued later. Returns false if the stored job cannot be read.
local function want_job(i, name, instant)
  local kind, digest, lane, spec = read_job(known[name][2])
  if not kind then
    return false
  end
  local place = #wanted + 1
  wanted[place] = {'tick-' .. name .. '-' .. digits(instant), place, digest, lane, spec}
  kinds[place], of_job[place] = kind, i
  return true
end

--- Note the event of an instant. `outcome` is its outcome, unless the job is kept out.
local function tell(i, schedule, instant, shift, outcome, missed)
  told[i] = {outcome, instant, instant + shift, schedule.state == 'on' and schedule.next_ms or nil, missed, schedule.v}
end

--- Move a schedule on to its next instant.
local function go_on(name, schedule, instant, next_at, shift)
  schedule.last, schedule.next_ms, schedule.due_ms = math.max(instant, schedule.last), next_at, next_at + shift
  entries[#entries + 1], entries[#entries + 2] = name, write_schedule(schedule)
  move_tick(name, schedule.due_ms)
end

--- Decide about a run that an operator asked for, whatever the instants are.
local function judge_run(i, name, schedule)
  if schedule.state == 'removed' then
    told[i] = {'gone'}
  elseif want_job(i, name, now) then
    tell(i, schedule, now, 0, 'run', 0)
  else
    told[i] = {'later'}
  end
end

--- Decide about a record.
local function judge(i)
  local name, version, expected, fired, next_at, missed = each(i)
  local schedule = known[name][1]
  if not schedule then
    told[i] = {'gone'}
    return
  elseif version >= 0 and version ~= schedule.v then
    told[i] = {'already'}
    return
  elseif expected == 0 then
    judge_run(i, name, schedule)
    return
  end
  local shift = schedule.due_ms - schedule.next_ms
  local outcome = instant_outcome(schedule, expected, fired, next_at, shift)
  if not outcome and is_undeclared(schedule, now) then
    schedule.state, schedule.v = 'undeclared', schedule.v + 1
    entries[#entries + 1], entries[#entries + 2] = name, write_schedule(schedule)
    move_tick(name, false)
    tell(i, schedule, expected, shift, 'undeclared', 0)
    return
  elseif not outcome and fired ~= 0 and not want_job(i, name, fired) then
    outcome = 'later'
  end
  if outcome then
    told[i] = {outcome}
    if outcome == 'later' then
      move_tick(name, now + LATER_MS)
    end
    return
  end
  local instant = fired ~= 0 and fired or expected
  go_on(name, schedule, instant, next_at, shift)
  tell(i, schedule, instant, shift, fired ~= 0 and 'fired' or 'missed', missed)
end

--- Decide about all records, and read the ids and names of their jobs. Returns a reply that refuses the call, or nil.
local function check_instants()
  told, wanted, kinds, of_job, entries, events, stopped, requests, handed = {}, {}, {}, {}, {}, {}, {}, {}, {}
  read_schedules()
  read_ticks(hand_max + each_count)
  for i = 1, each_count do
    judge(i)
  end
  if #wanted == 0 then
    return nil
  end
  return check_records(#wanted, function(k)
    return unpack(wanted[k])
  end, kinds)
end

--- Ask the running job of a schedule to stop, if its next job must not wait for its end (overlap `replace`).
local function stop_running(name, kind)
  if kind.unique ~= 'replace' then
    return
  end
  local scope = 'tick=' .. name
  local member = redis.call('ZRANGEBYLEX', holders, '[' .. scope .. '|', '(' .. scope .. '}', 'LIMIT', '0', '1')[1]
  local id = member and member:sub(#scope + 2)
  local job = id and read_line(redis.call('HGET', state, id))
  if job and job.state == 'running' then
    requests[#requests + 1] = '["' .. id .. '",' .. quoted(job.fence) .. ']'
    job.state, job.since = 'cancelling', now
    stopped[#stopped + 1], stopped[#stopped + 2] = id, write_line(job)
  end
end

--- Decide about the jobs. A job that is not accepted changes the outcome of its record.
local function decide_jobs()
  local out, holder = {}, {}
  local answer = decide_records()
  for at = 1, #answer, 3 do
    if answer[at + 1] ~= 'replaced' then
      out[answer[at]], holder[answer[at]] = answer[at + 1], answer[at + 2]
    end
  end
  for k = 1, #wanted do
    local this = told[of_job[k]]
    if out[k] then
      this[1] = this[1] == 'run' and 'not_run' or out[k] == 'duplicate' and 'duplicate' or 'skipped'
      this.holder = holder[k] ~= '-' and holder[k] or nil
    else
      stop_running((each(of_job[k])), kinds[k])
    end
  end
end

--- Give schedules that are due to the worker.
local function hand_out()
  local names = due_ticks(hand_max)
  local stored = read_many(schedules, names)
  for i = 1, #names do
    local name, schedule = names[i], read_schedule(stored[i])
    if schedule and schedule.state == 'on' then
      handed[#handed + 1], handed[#handed + 2] = name, stored[i]
      move_tick(name, now + HAND_MS)
    else
      move_tick(name, false)
    end
  end
end

--- Decide about the jobs, and choose the schedules that the worker gets. Returns the words of the answer, and these
--- schedules.
local function decide_instants()
  if #wanted > 0 then
    decide_jobs()
  end
  hand_out()
  decide_ticks()
  local answer = {now_text}
  for i = 1, each_count do
    local name, this = each(i), told[i]
    answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = name, this[1], this.holder or '-'
    if this[2] then
      passed_over = passed_over + this[5]
      local at = digits(this[2])
      events[#events + 1] = '["tick-' .. name .. '-' .. at .. '","' .. name .. '",' .. digits(this[6]) .. ',' .. at .. ',' ..
        digits(this[3]) .. ',' .. (this[4] and digits(this[4]) or 'null') .. ',"' .. this[1] .. '",' .. digits(this[5]) ..
        (this.holder and ',' .. quoted(this.holder) or '') .. ']'
    end
  end
  if passed_over > 0 then
    read_now('schedules_missed')
  end
  return answer, handed
end

--- Append the events, and write.
local function write_instants()
  if #wanted > 0 then
    emit_records()
  end
  emit('ticked', now_text, by, events, why)
  emit('cancel_requested', now_text, by, requests)
  if #wanted > 0 then
    write_records()
  end
  call_many('HSET', state, stopped)
  call_many('HSET', schedules, entries)
  write_ticks()
  if passed_over > 0 then
    set_fact('schedules_missed', fact('schedules_missed') + passed_over)
  end
end
