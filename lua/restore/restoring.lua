--[[ restoring: decides the outcome of each record of a restore. Everything is decided before anything is written.

Keys: jobs state scheduled dead expiring results boxes
Meta: sequence remembers durable
Args: each each_count by why
Unread: jobs dead expiring
Uses: call(now) parts(run_parts) meta(facts fact set_fact read_now) emit(emit) state(read_line write_line is_claimed)
    lane_states(meet_lanes) lane_write(check_lanes write_lanes) line_tail(join_line write_line_tails) removal(end_job)
    name_requeue(is_name_held retake_name) names(holds_name) unqueue(unqueue) deadline(note_deadline)
    due(earliest_due) dead_index(index_dead unindex_dead) wake(wake_needed) batch(call_many) stored_lines(read_lines)
    baseline_of(baseline_of) results(keep_line keep_result) idempotency(read_remembered take_id is_id_remembered)
    box(read_header write_header)
]]

local BOX_WAITS_MS = 3600000   -- how long the entries of a box may wait for their job

local held           -- by record: the line of the job that has its id, if it is alive
local seen           -- id → the record of the job that this call restored, or its end
local is_remembered  -- whether any record has an id to be remembered, or a job whose result is kept
local next_due       -- when the first scheduled member was due before this call
local seq            -- the last place in line that was given
local unheard, restored, removed     -- the events' parts about each job
local specs, lines, due              -- arguments of HSET `jobs`, HSET `state` and ZADD `scheduled`
local buried, exhumed                -- ids of jobs that are restored as dead, and of dead jobs that are removed
local fields, headers                -- fields of `boxes` that are written, with their values, and the header of each box by its life
local has_box                        -- whether a box or a job with a box is written
local unsaid                         -- the event's parts about the signals that are lost
local orphans, adopted               -- members of `expiring` for boxes whose jobs are not there yet, and of those whose jobs are restored

local function reset()
  held, seen, is_remembered, next_due, seq = nil, {}, nil, nil, nil
  unheard, restored, removed, specs, lines, due, buried, exhumed = {}, {}, {}, {}, {}, {}, {}, {}
  fields, headers, unsaid, orphans, adopted, has_box = {}, {}, {}, {}, {}, false
end

--- Check the records, and read the jobs and lines of their ids. Returns a reply that refuses the call, or nil.
local function check_restore()
  local ids, lanes_named = {}, {}
  for i = 1, each_count do
    local id, kind, _, line = each(i)
    local job = read_line(line)
    local is_known = kind == 'restore' or kind == 'missing' or kind == 'remove'
    local is_entry = (kind == 'entry' or kind == 'lost') and job and job.life
    local stands = kind == 'name' and job and job.unique and (job.stands or ''):match('^until:%d+$')
    if not job or not (is_known and job.task or kind == 'remember' and job.once or stands or is_entry) then
      return {'refused', 'arguments', 'kind'}
    elseif is_entry and not boxes then
      return {'with', 'durable'}
    elseif (job.once or job.keep) and not results then
      return {'with', 'remembers'}
    end
    is_remembered = is_remembered or job.once or job.keep
    ids[i] = id
    lanes_named[#lanes_named + 1] = job.lane
  end
  held = read_lines(ids)
  if results then
    read_remembered(ids, held)
  end
  check_keys()
  next_due = earliest_due(0)
  if #lanes_named > 0 then
    meet_lanes(lanes_named)
  end
  seq = fact('sequence')
  return nil
end

--- Put a restored job into its place. Returns its place in line and its due time, as JSON.
local function place_again(id, job, due_ms)
  job.since = now
  if job.expires and job.state ~= 'dead' then
    set_fact('ties', 1)
    note_deadline(id, job.expires)
  end
  if job.state == 'scheduled' and due_ms > now then
    job.due = due_ms
    due[#due + 1], due[#due + 2] = due_ms, 'job|' .. id
    if not next_due or due_ms < next_due then
      wake_needed()
    end
    return 'null,' .. due_ms
  end
  seq = seq + 1
  job.seq = seq
  if job.state == 'dead' then
    buried[#buried + 1] = id
    read_now('dead_retention_ms')
    return seq .. ',null'
  end
  job.state = 'ready'
  join_line(id, job)
  return seq .. ',null'
end

--- Remember the id of a job that has ended again. `value` is its result; empty: only the id is remembered.
local function remember_again(i, id, due_ms, line, value, alive)
  if is_id_remembered(i) then
    return 'known'
  elseif alive and alive.state ~= 'gone' then
    return alive.state
  elseif due_ms <= now then
    return 'gone'
  end
  take_id(i, id)
  if value ~= '' then
    keep_result(id, line, due_ms, value)
  else
    keep_line(id, line, due_ms)
  end
  seen[id] = {state = 'remembered'}
  return 'remembered'
end

--- Let a job that has ended hold its name again.
local function name_again(id, job)
  if is_name_held(id, job) then
    return 'held'
  elseif not holds_name(job, now) then
    return 'gone'
  end
  set_fact('ties', 1)
  retake_name(id, job)
  return 'named'
end

--- Put back a member of a job's lost box. `line` names the life, and has the header's numbers; `rest` is the member's
--- name behind the life. The whole header comes with the first member, and the last entry with the last one: before that,
--- no worker reads the box, and it takes no signal. A box that has another header is not changed. `is_lost`: the member
--- is a signal that must be sent again.
local function keep_entry(id, rest, line, text, alive, is_lost)
  local life = line:match(' life=(%S+)')
  local header = write_header(id, read_header(line))
  local job_life = alive and (alive.life or '-') or life
  if alive and (alive.state == 'gone' or is_claimed(alive) or job_life ~= life) then
    return alive.state
  end
  local found = headers[life] or redis.call('HGET', boxes, life)
  if found and found ~= header then
    return 'known'
  elseif not headers[life] then
    headers[life] = header
    fields[#fields + 1], fields[#fields + 2] = life, header
    if not alive then
      orphans[#orphans + 1], orphans[#orphans + 2] = now + BOX_WAITS_MS, 'box|' .. life
    end
  end
  fields[#fields + 1], fields[#fields + 2] = life .. rest, text
  if is_lost then
    unsaid[#unsaid + 1] = '["' .. id .. '","' .. life .. '",' .. rest:sub(2) .. ']'
  end
  has_box = true
  return 'kept'
end

--- Remove a job that had ended and is alive again.
local function remove_again(i, id, line, detail, alive)
  if not alive or alive.state == 'gone' then
    return 'gone'
  elseif held[i] ~= line or seen[id] or is_claimed(alive) then
    return alive.state
  end
  removed[#removed + 1] = '["' .. id .. '",' .. detail .. ']'
  if alive.state == 'dead' then
    exhumed[#exhumed + 1] = id
  end
  end_job(id, alive)
  unqueue(id, alive)
  seen[id] = {state = 'gone'}
  return 'removed'
end

--- Restore a job that Redis does not have.
local function bring_back(i, id, kind, due_ms, line, detail, spec)
  local job = read_line(line)
  seen[id] = job
  if kind == 'missing' then
    unheard[#unheard + 1] = baseline_of(id, nil)
  end
  if job.unique then
    set_fact('ties', 1)
  end
  if job.life then
    adopted[#adopted + 1] = 'box|' .. job.life
    has_box = true
  end
  if results then
    take_id(i, id)
  end
  retake_name(id, job)
  local placed = place_again(id, job, due_ms)
  restored[#restored + 1] = '["' .. id .. '",' .. placed .. ',"' .. job.state .. '",' .. detail .. ']'
  lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
  specs[#specs + 1], specs[#specs + 2] = id, spec
  return 'restored'
end

--- Decide about a record. Returns its outcome.
local function decide_record(i)
  local id, kind, due_ms, line, detail, spec = each(i)
  local alive = seen[id] or read_line(held[i])
  if kind == 'remember' then
    return remember_again(i, id, due_ms, line, spec, alive)
  elseif kind == 'entry' or kind == 'lost' then
    return keep_entry(id, detail, line, spec, alive, kind == 'lost')
  elseif kind == 'name' then
    return name_again(id, read_line(line))
  elseif kind == 'remove' then
    return remove_again(i, id, line, detail, alive)
  elseif alive then
    return alive.state
  elseif is_id_remembered(i) then
    return 'remembered'
  elseif is_name_held(id, read_line(line)) then
    return 'held'
  end
  return bring_back(i, id, kind, due_ms, line, detail, spec)
end

--- Decide about all records. Returns the entry `last`, then ids and outcomes.
local function decide_restore(last)
  local answer = {last}
  for i = 1, each_count do
    local id = each(i)
    answer[#answer + 1], answer[#answer + 2] = id, decide_record(i)
  end
  check_lanes()
  run_parts('check')
  return answer
end

--- Append the events. Returns the entry of the last one; nil if there are no events.
local function emit_restore()
  run_parts('append', by)
  emit('signal_lost', now, by, unsaid, why)
  emit('baseline', now, by, unheard, why)
  local gone_at = emit('removed', now, by, removed, why)
  return emit('restored', now, by, restored, why) or gone_at
end

--- Write all changes.
local function write_restore()
  run_parts('write')
  unindex_dead(exhumed)
  call_many('HSET', jobs, specs)
  call_many('HSET', state, lines)
  write_line_tails()
  call_many('ZADD', scheduled, due)
  call_many('HSET', boxes, fields)
  call_many('ZADD', expiring, orphans)
  call_many('ZREM', expiring, adopted)
  index_dead(buried, now)
  write_lanes()
  if seq ~= fact('sequence') then
    set_fact('sequence', seq)
  end
  if is_remembered and not facts.remembers then
    set_fact('ties', 1)
    set_fact('remembers', 1)
  end
  if has_box and not facts.durable then
    set_fact('durable', '1')
  end
end
