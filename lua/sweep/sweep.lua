--[[ sweep: does the due work of a queue, whichever worker claims: expired leases end, due jobs become ready, exhausted
rates resume, and expired ids, names and slots are forgotten. At most `sweep_max` of each kind in a call. Schedules that
are due (`tick|`) are given to the worker that claims; if they are still due a second later, they are given to another
worker.

The head of `scheduled` is read in each call. Leases and `expiring` are read again once the first lease of the last read
has expired, and after SWEEP_MS at the latest; no lease that begins meanwhile ends sooner. A function notes this time
together with the queue's facts. So if the queue is another one, or its facts have changed, the keys are read at once.

Everything is decided here and written by `write_sweep`. Jobs that become ready can be claimed in the same call without
being written into a list: `returning` and `joining` are sources of the claim, like the lists.

Keys: state jobs leases scheduled expiring slots rates caps boxes shown
Meta: durable
Later: sequence
Args: slot worker sweep_max
Unread: jobs
Uses: call(now now_text answer_field) parts(run_parts) activity(note_activity)
    meta(facts fact set_fact notes_of_queue) emit(emit quoted) batch(call_many read_many)
    state(read_line write_line count rank is_claimed drop_claim) scopes(scope_of await_no_more check_scopes)
    lane_states(lane_of) lane_members(put)
    lane_opening(note_release note_end free_places reevaluate reevaluate_family FAMILY_MAX) dead_index(unindex_dead check_dead)
    removal(end_job) death(mark_dead) results(forget_over) due(earliest_due) digits(digits) settled_ids(is_settled)
    tries(may_run_again) deadline(is_over note_deadline) names(name_field holder_in) expiry(expire_here expire_waiting) box(empty_box write_emptied)
    shown(fields_of)
    parking(unpark)
]]

local TICK_MS = 1000   -- ms for which a worker alone has the schedules that are due
local SWEEP_MS = 100   -- maximum ms between two reads of the leases while workers claim

local UNSHOWN_MAX = 1000   -- fields of streams after which a call removes no further stream

local swept = {}       -- decided changes, by kind: ids, members or events
local has_swept = false   -- whether there are any
local returning = {}   -- jobs to put at the head of their list, by priority
local joining = {}     -- jobs to append to their list, by priority
local rewritten = {}   -- jobs whose new lines are written unless the jobs are taken
local decided = {}     -- ids of jobs that became ready or died here; a claim ignores their entries in lists

local function reset()
  if has_swept then
    has_swept, swept, returning, joining, decided = false, {}, {}, {}, {}
  end
  if #rewritten > 0 then
    rewritten = {}
  end
end

local function note(kind, value)
  local list = swept[kind]
  if not list then
    list = {}
    has_swept, swept[kind] = true, list
  end
  list[#list + 1] = value
end

--- Note that a job has a new line, which is written unless the job is claimed in this call.
local function rewrite(job)
  if not job.is_rewritten then
    job.is_rewritten = true
    rewritten[#rewritten + 1] = job
  end
end

--- Let a job be claimed again, from its lane or a plain list.
local function let_come(job, plain)
  rewrite(job)
  decided[job.id] = true
  if job.lane then
    put(lane_of(job.lane), count(job, 'seq'), job.id, job)
  else
    local priority = rank(job)
    local list = plain[priority] or {}
    plain[priority] = list
    list[#list + 1] = job
  end
end

--- End a claim whose lease has expired.
local function expire(id, job)
  note_release(job.lane, id)
  note_end(id)
  if job.state == 'cancelling' then
    note('cancelled', '["' .. id .. '",' .. quoted(job.fence) .. ']')
    end_job(id, job, 'cancelled', job.fence)
    return
  end
  local lost = count(job, 'lost') + 1
  job.lost = lost
  local target = may_run_again(job, 'lost', 'losses') and 'ready' or 'dead'
  note('expired', '["' .. id .. '",' .. quoted(job.fence) .. ',' .. quoted(job.by) .. ',' .. lost .. ',"' .. target .. '"]')
  drop_claim(job)
  job.id, job.state, job.since = id, target, now
  if target == 'ready' and is_over(job, now) then
    decided[id] = true
    expire_here(id, job)
  elseif target == 'ready' then
    if job.expires then
      note_deadline(id, job.expires)
    end
    let_come(job, returning)
  else
    mark_dead(id, job, 'poison')
    decided[id] = true
    note('lines', id)
    note('lines', write_line(job))
  end
end

--- Return the number of leases that this sweep has ended.
local function ended_leases()
  return swept.unleased and #swept.unleased or 0
end

--- Return whether it is too early to read leases and `expiring` again.
local function is_swept()
  local notes = notes_of_queue()
  return notes and notes.quiet_until and now < notes.quiet_until
end

--- Note that this call has read the leases. No lease ends before `quiet_until`.
local function note_swept(quiet_until)
  local notes = notes_of_queue()
  if notes then
    notes.quiet_until = math.min(quiet_until, now + SWEEP_MS)
  end
end

--- End the claims whose leases have expired. After an outage of all workers (`no_reap_before`), `leases` is not read.
local function expire_leases()
  local reap_from = fact('no_reap_before')
  if reap_from > now then
    note_swept(reap_from)
    return
  end
  local first = redis.call('ZRANGE', leases, '0', '0', 'WITHSCORES')
  local ends = tonumber(first[2]) or math.huge
  note_swept(ends)
  if ends > now then
    return
  end
  local ids = redis.call('ZRANGEBYSCORE', leases, '-inf', now_text, 'LIMIT', '0', digits(sweep_max))
  local held = read_many(state, ids)
  for i, id in ipairs(ids) do
    if not is_settled(id) then
      local job = read_line(held[i])
      note('unleased', id)
      if job and is_claimed(job) then
        expire(id, job)
      end
    end
  end
end

--- Make a job that is due ready.
local function promote(id, job, new_seq)
  job.id, job.state, job.due, job.since = id, 'ready', nil, now
  local plain = job.seq and returning or joining
  job.seq = job.seq or new_seq
  let_come(job, plain)
  note('promoted', '["' .. id .. '",' .. job.seq .. ']')
end

--- Wake a parked job, since a moment that it waits for has come.
local function wake_parked(id, job)
  unpark(id, job)
  job.id, job.state, job.since = id, 'ready', now
  let_come(job, returning)
  note('woken', '["' .. id .. '",null]')
end

--- Process the members of `scheduled` that are due. Rates that resume, and families whose limit has changed, are left
--- to `let_resume`. Returns the time at which the next member is due, or '-'.
local function promote_due()
  local first = earliest_due(0)
  if not first or first > now then
    return first or '-'
  end
  local due = redis.call('ZRANGEBYSCORE', scheduled, '-inf', now_text, 'LIMIT', '0', digits(sweep_max))
  local ids, seq = {}, fact('sequence')
  for i, member in ipairs(due) do
    local kind, name = member:match('^(%l+)|(.*)$')
    ids[i] = kind == 'job' and name or ''
    note('undue', member)
    if kind == 'rate' or kind == 'caps' then
      note(kind, name)
    elseif kind == 'tick' then
      note('unfinished', now + TICK_MS)
      note('unfinished', member)
      swept.has_ticks = true
    end
  end
  local waiting_jobs = read_many(state, ids)
  for i, id in ipairs(ids) do
    local job = read_line(waiting_jobs[i])
    local waits = job and (job.state == 'scheduled' or job.state == 'parked')
    if waits and is_over(job, now) then
      decided[id] = true
      expire_here(id, job)
    elseif waits and job.state == 'parked' then
      wake_parked(id, job)
    elseif waits then
      seq = seq + (job.seq and 0 or 1)
      promote(id, job, seq)
    end
  end
  if seq ~= fact('sequence') then
    set_fact('sequence', seq)
  end
  local next_due = earliest_due(#due) or '-'
  if swept.has_ticks then
    return next_due == '-' and now + TICK_MS or math.min(next_due, now + TICK_MS)
  end
  return next_due
end

--- Forget expired call slots, names, dead jobs and rates, and let jobs expire that wait past their deadline. Returns
--- whether more is left for the next claim.
local function forget_old()
  local over = redis.call('ZRANGEBYSCORE', expiring, '-inf', now_text, 'LIMIT', '0', digits(sweep_max))
  local late, over_names, is_cut
  for _, member in ipairs(over) do
    local kind, name = member:match('^(%l+)|(.*)$')
    if kind == 'slot' and name ~= slot then
      note('unexpired', member)
      note('slots', name)
      note('slots', answer_field(name))
    elseif kind == 'dead' then
      note('unexpired', member)
      local job = read_line(redis.call('HGET', state, name))
      if job and job.state == 'dead' then
        note('pruned', '["' .. name .. '"]')
        note('exhumed', name)
        end_job(name, job, 'dead')
      end
    elseif kind == 'rate' then
      if not swept.stale then
        redis.call('HEXISTS', rates, name)   -- if `rates` is no hash, this fails now, not after the first write
      end
      note('unexpired', member)
      note('stale', name)
    elseif kind == 'job' then
      note('unexpired', member)
      late = late or {}
      late[#late + 1] = name
    elseif kind == 'name' then
      note('unexpired', member)
      over_names = over_names or {}
      over_names[#over_names + 1] = name_field(name)
    elseif kind == 'box' and boxes then
      if empty_box(name) then
        note('unexpired', member)
      else
        is_cut = true
      end
    elseif kind == 'shown' and shown then
      if swept.unshown and #swept.unshown > UNSHOWN_MAX then
        is_cut = true
      else
        note('unexpired', member)
        for _, field in ipairs(fields_of(name, redis.call('HGET', shown, name))) do
          note('unshown', field)
        end
      end
    end
  end
  if over_names then
    local values = read_many(slots, over_names)
    for i = 1, #over_names do
      -- Another job may have taken the name since, and hold it until it ends.
      if values[i] and not holder_in(values[i], now) then
        note('slots', over_names[i])
      end
    end
  end
  if late then
    expire_waiting(late, read_many(state, late), decided)
  end
  return facts.remembers and forget_over(sweep_max) or #over == sweep_max or is_cut
end

--- Free places, and open the lanes that waited for them or for rates that resume. Call this when all jobs are in their
--- places. Returns whether changes of limits are left for the next claim.
local function let_resume()
  free_places()
  if not has_swept then
    return false
  end
  for _, name in ipairs(swept.rate or {}) do
    await_no_more(scope_of(name))
    reevaluate(name)
  end
  local unfinished = false
  for _, change in ipairs(swept.caps or {}) do
    local family, after = change:match('^([^|]*)|?(.*)$')
    local last = reevaluate_family(family, after, math.min(sweep_max, FAMILY_MAX))
    if last then
      unfinished = true
      note('unfinished', now)
      note('unfinished', 'caps|' .. family .. '|' .. last)
    end
  end
  return unfinished
end

--- Check the types of keys that only `write_sweep` writes.
local function check_sweep()
  if not has_swept then
    return
  end
  check_keys()
  if swept.exhumed then
    check_dead()
  end
  if swept.stale then
    check_scopes()
  end
end

--- If the clock went back, re-evaluate the families of rates now, since the times at which these rates resume are too
--- far ahead.
local function note_clock()
  if fact('last_activity') <= now then
    return
  end
  set_fact('last_activity', now)
  set_fact('no_reap_before', math.min(fact('no_reap_before'), now + fact('lease_ms')))
  local entries, seen = redis.call('HGETALL', caps), {}
  for i = 1, #entries, 2 do
    local family = entries[i]:match('^[^=]+')
    if family:find('@', 1, true) and not seen[family] then
      seen[family] = true
      note('caps', family)
    end
  end
end

--- Do the due work of the queue. Returns the time at which the next scheduled member is due ('-': none is scheduled),
--- whether work is left for the next claim, and whether schedules are due.
local function sweep()
  note_clock()
  note_activity(now)
  local is_quiet = is_swept()
  if not is_quiet then
    expire_leases()
  end
  local next_due = promote_due()
  local is_full = not is_quiet and forget_old()
  local unfinished = let_resume()
  if is_full then
    note_swept(now)
  end
  return next_due, unfinished or is_full, swept.has_ticks
end

--- Return the plain jobs that became ready, by priority: those to put at the head of their list, and those to append;
--- and the ids of all jobs that became ready or died here.
local function swept_jobs()
  return returning, joining, decided
end

--- Append the events of the sweep. They are the first writes of the call.
local function emit_sweep()
  if has_swept then
    emit('lease_expired', now_text, worker, swept.expired)
    emit('cancelled', now_text, worker, swept.cancelled)
    emit('promoted', now_text, worker, swept.promoted)
    emit('woken', now_text, worker, swept.woken)
  end
  run_parts('append', worker)
  if has_swept then
    emit('pruned', now_text, worker, swept.pruned)
  end
end

local function write_sweep()
  for i = 1, #rewritten do
    local job = rewritten[i]
    if not job.is_taken then
      note('lines', job.id)
      note('lines', write_line(job))
    end
  end
  if boxes then
    write_emptied()
  end
  if not has_swept then
    return
  end
  call_many('HSET', state, swept.lines)
  call_many('ZREM', leases, swept.unleased)
  call_many('ZREM', scheduled, swept.undue)
  call_many('ZADD', scheduled, swept.unfinished)
  if swept.exhumed then
    unindex_dead(swept.exhumed)
  end
  call_many('ZREM', expiring, swept.unexpired)
  if shown then
    call_many('HDEL', shown, swept.unshown)
  end
  call_many('HDEL', slots, swept.slots)
  call_many('HDEL', rates, swept.stale)
end
