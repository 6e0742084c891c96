--[[ editing: decides the outcome of an edit for each job, and writes the edited jobs. Everything is decided before
anything is written.

Keys: state ready scheduled expiring
Meta: ties
Later: sequence
Args: each each_count by why
Unread: ready scheduled expiring
Uses: call(now) parts(run_parts) meta(facts fact set_fact) emit(emit quoted) state(count rank write_line)
    unqueue(unqueue) line_tail(join_line write_line_tails) ready(return_ready) lane_states(lane_of) lane_members(put)
    lane_write(check_lanes write_lanes) deadline(note_deadline) due(earliest_due) wake(wake_needed) digits(digits)
    batch(call_many) jobs_by_id(decide_by_id)
]]

local new_priority, new_rank, due_at, deadline   -- the new options; nil for an option that does not change
local is_endless     -- whether the deadline is removed
local expected       -- id → the state line that the caller expects; empty: any line
local seq            -- the last place in line that was given
local next_due       -- when the first scheduled member was due before this call
local events, lines  -- the event's part about each job, and ids and lines
local edited         -- id → true
local endless        -- members of `expiring` of deadlines that are removed
local due_times      -- times and members of `scheduled`
local returning      -- by priority: {id, seq} of jobs that return to a plain list

local function reset()
  new_priority, new_rank, due_at, deadline, is_endless, seq, next_due = nil, nil, nil, nil, nil, nil, nil
  expected, events, lines, edited, endless, due_times = {}, {}, {}, {}, {}, {}
  returning = {[0] = {}, {}, {}, {}}
end

--- Return the Unix ms that a text means: Unix ms, or `+` and ms from now; nil for any other text.
local function moment(text)
  local ahead, ms = text:match('^(%+?)(%d+)$')
  local value = ms and whole_number(tonumber(ms))
  return value and (ahead == '+' and now + value or value)
end

--- Check the new options, given as the call's arguments. Returns a reply that refuses the call, or nil.
local function check_edit(name, due, ends)
  new_priority, new_rank, due_at, deadline, is_endless = name, PRIORITY_RANK[name], moment(due), moment(ends), ends == '-'
  if name ~= '' and not new_rank then
    return {'refused', 'arguments', 'priority'}
  elseif due ~= '' and not due_at then
    return {'refused', 'arguments', 'due'}
  elseif ends ~= '' and not is_endless and not deadline then
    return {'refused', 'arguments', 'expires'}
  end
  check_keys()
  for i = 1, each_count do
    local id, line = each(i)
    expected[id] = line
  end
  seq, next_due = fact('sequence'), earliest_due(0)
  return nil
end

--- Return a number as JSON for the event; null for a value that a client has damaged.
local function whole_or_null(value)
  local found = whole_number(value)
  return found and digits(found) or 'null'
end

--- Put a job that is ready now into line: at its place or, if it has none, at a new place at the tail.
local function let_wait(id, job)
  if not job.seq then
    seq = seq + 1
    job.seq = seq
    join_line(id, job)
  elseif job.lane then
    put(lane_of(job.lane), count(job, 'seq'), id)
  else
    local list = returning[rank(job)]
    list[#list + 1] = {id, count(job, 'seq')}
    wake_needed()
  end
end

--- Give a job the new priority. Returns the job's new lane; nil if the job is in no lane.
local function change_priority(job)
  job.priority, job.seq = new_priority, nil
  if new_priority == DEFAULT_PRIORITY then
    job.priority = nil
  end
  if job.lane then
    job.lane = new_rank .. job.lane:sub(2)
  end
  return job.lane
end

--- Write an edited job, whose due time is `new_due`; nil: it is ready.
local function change(id, job, new_due, new_expires)
  local old_due, old_priority, old_expires = job.due, job.priority or DEFAULT_PRIORITY, job.expires
  local moves = new_rank ~= nil and new_rank ~= rank(job)
  local was_ready, moved_to = job.state == 'ready', nil
  local has_new_place = moves or was_ready ~= (new_due == nil)
  if has_new_place then
    unqueue(id, job)
  end
  if moves then
    moved_to = change_priority(job)
  end
  job.state, job.since, job.due = new_due and 'scheduled' or 'ready', now, new_due
  if new_due and (has_new_place or new_due ~= tonumber(old_due)) then
    due_times[#due_times + 1], due_times[#due_times + 2] = new_due, 'job|' .. id
    if not next_due or new_due < next_due then
      wake_needed()
    end
  elseif not new_due and has_new_place then
    let_wait(id, job)
  end
  if not new_expires and old_expires then
    job.expires = nil
    endless[#endless + 1] = 'job|' .. id
  elseif new_expires ~= old_expires then
    job.expires = digits(new_expires)
    note_deadline(id, job.expires)
  end
  events[#events + 1] = '["' .. id .. '",' .. whole_or_null(job.seq) .. ',' .. whole_or_null(new_due) .. ',"' ..
    (job.priority or DEFAULT_PRIORITY) .. '",' .. quoted(moved_to) .. ',' .. whole_or_null(job.expires) .. ',' ..
    whole_or_null(old_due) .. ',"' .. old_priority .. '",' .. whole_or_null(old_expires) .. ']'
  lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
end

--- Decide about a job. Returns its outcome; nil for a job that does not wait.
local function edit_job(id, job)
  if edited[id] then
    return 'edited'
  elseif job.state ~= 'ready' and job.state ~= 'scheduled' then
    return nil
  elseif expected[id] ~= '' and expected[id] ~= write_line(job) then
    return 'changed'
  end
  local old_due, old_expires = tonumber(job.due), tonumber(job.expires)
  local new_due, new_expires = old_due, deadline or not is_endless and old_expires or nil
  if due_at then
    new_due = due_at > now and due_at or nil
  end
  if new_expires and new_expires <= math.max(now, new_due or 0) then
    return 'never'
  elseif new_due == old_due and new_expires == old_expires and (not new_rank or new_rank == rank(job)) then
    return 'same'
  end
  edited[id] = true
  if new_expires == old_expires then
    new_expires = job.expires
  end
  change(id, job, new_due, new_expires)
  return 'edited'
end

--- Decide about all jobs of the call. Returns the answer.
local function decide_edit()
  local answer = decide_by_id(edit_job)
  check_lanes()
  run_parts('check')
  return answer
end

--- Append the event, and write.
local function write_edit()
  emit('edited', now, by, events, why)
  run_parts('write')
  call_many('HSET', state, lines)
  call_many('ZREM', expiring, endless)
  call_many('ZADD', scheduled, due_times)
  write_line_tails()
  for at = 0, 3 do
    return_ready(at, returning[at])
  end
  write_lanes()
  if seq ~= fact('sequence') then
    set_fact('sequence', seq)
  end
  if deadline and #events > 0 and not facts.ties then
    set_fact('ties', 1)
  end
end
