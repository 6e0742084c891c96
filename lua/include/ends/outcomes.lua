--[[ outcomes: ends claims that failed or were given back, and moves their jobs to where they belong. Everything is
checked and decided before the first write.

Keys: jobs state ready scheduled leases
Args: each each_count worker
Unread: jobs ready
Uses: call(now) parts(run_parts) state(read_line write_line count rank drop_claim) fences(read_held emit_refused)
    ready(return_ready) lane_states(lane_of) lane_members(put) lane_opening(note_release note_end free_places)
    lane_write(check_lanes write_lanes) due(earliest_due) removal(end_job) death(mark_dead) deadline(note_deadline)
    wake(wake_needed) batch(call_many read_many) queue_cap(wake_if_below_cap) emit(emit)
]]

local ended        -- ids whose claim ends
local broken       -- ids of jobs that died of an error
local errors       -- errors of these jobs
local causes       -- ids and values in `jobs` of these jobs
local lines        -- ids and lines of all jobs that stay in Redis
local due          -- due times and members of `scheduled` of jobs that wait
local returning    -- by priority: {id, seq} of jobs that return to a plain list
local next_due     -- when the first scheduled member was due before this call

local ERROR_MAX = 16384   -- maximum bytes of an error that Redis keeps with the job; only the log has a longer one

local function reset()
  ended, lines, due, next_due = {}, {}, {}, nil
  broken, errors, causes = {}, {}, {}
  returning = {[0] = {}, {}, {}, {}}
end

local function write_later(id, job, name)
  job.state, job.since = name, now
  if job.expires and name ~= 'dead' then
    note_deadline(id, job.expires)
  end
  lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
end

--- Let a job wait until a moment, in this state.
local function await_due(id, job, at, name)
  job.due = at
  due[#due + 1], due[#due + 2] = job.due, 'job|' .. id
  if not next_due or job.due < next_due then
    wake_needed()
  end
  write_later(id, job, name)
end

--- Schedule a job. Returns when it is due.
local function make_scheduled(id, job, delay_ms)
  await_due(id, job, now + delay_ms, 'scheduled')
  return job.due
end

--- Park a job, which waits for these entries, and until a moment at most (Unix ms); nil: only for signals.
local function make_parked(id, job, waits, at)
  job.waits = waits
  if at then
    await_due(id, job, at, 'parked')
  else
    write_later(id, job, 'parked')
  end
end

--- Put a job back to its place in line, or, with a delay, into `scheduled`. Returns when it is due, or 'null'.
local function make_ready(id, job, delay_ms)
  if delay_ms > 0 then
    return make_scheduled(id, job, delay_ms)
  end
  if job.lane then
    put(lane_of(job.lane), count(job, 'seq'), id)
  else
    local list = returning[rank(job)]
    list[#list + 1] = {id, count(job, 'seq')}
    wake_needed()
  end
  write_later(id, job, 'ready')
  return 'null'
end

--- Return an error as JSON, without its traceback if it would be too long with it; nil if there is no error, or if it
--- is too long even then. The event has the whole error.
local function brief(failure)
  local at = #failure > ERROR_MAX and failure:find(', "traceback": "', 1, true)
  local said = at and failure:sub(1, at - 1) .. '}' or failure
  return said ~= 'null' and #said <= ERROR_MAX and said:gsub('[\r\n]', ' ') or nil
end

--- Read the values in `jobs` of jobs that died, and put the error into the first line, before the JSON. That line said
--- how the job first waited; `state` has the job's present line.
local function read_causes()
  local values = read_many(jobs, broken)
  for i = 1, #broken do
    local value = values[i]
    if value then
      local head = value:find('\n', 1, true) or 0
      causes[#causes + 1] = broken[i]
      causes[#causes + 1] = 'error=' .. errors[i] .. '\n' .. value:sub(head + 1)
    end
  end
end

local function make_dead(id, job, why, failure)
  mark_dead(id, job, why)
  local said = brief(failure)
  if said then
    broken[#broken + 1], errors[#errors + 1] = id, said
  end
  write_later(id, job, 'dead')
end

--- End the claims of this call's records. `decide(i, job)` makes the job of record i ready or dead; it is not called
--- for a job that an operator cancelled. A function `keeps(i, job)` is called before it, if there is one: if it returns
--- true, the claim of record i stays in force, and the answer is `behind`. Returns the answer, refusals by record, and the
--- events of cancelled jobs.
local function end_claims(decide, keeps)
  local held, refusals = read_held()
  check_keys()
  next_due = earliest_due(0)
  local cancelled, answer = {}, {}
  for i = 1, each_count do
    local id, fence = each(i)
    local job = read_line(held[i])
    local outcome = refusals[i]
    if keeps and job and job.state ~= 'cancelling' and keeps(i, job) then
      outcome, job = 'behind', nil
    end
    if job then
      ended[#ended + 1] = id
      note_release(job.lane, id)
      note_end(id)
      drop_claim(job)
    end
    if job and job.state == 'cancelling' then
      outcome = 'cancelled'
      end_job(id, job, 'cancelled', fence)
      cancelled[#cancelled + 1] = '["' .. id .. '","' .. fence .. '"]'
    elseif job then
      decide(i, job)
      outcome = job.state
    end
    answer[#answer + 1], answer[#answer + 2] = id, outcome
  end
  -- Places are freed, and lanes opened, once all jobs are in their places.
  free_places()
  wake_if_below_cap(#ended)
  check_lanes()
  run_parts('check')
  if #broken > 0 then
    read_causes()
  end
  return answer, refusals, cancelled
end

--- Write all changes, after the script's own events. `what` is the outcome that the worker reported for refused claims.
local function write_outcomes(what, refusals, cancelled)
  run_parts('append', worker)
  emit('cancelled', now, worker, cancelled)
  emit_refused(refusals, what, now, worker)
  run_parts('write')
  call_many('HSET', state, lines)
  call_many('HSET', jobs, causes)
  call_many('ZREM', leases, ended)
  call_many('ZADD', scheduled, due)
  for priority = 0, 3 do
    return_ready(priority, returning[priority])
  end
  write_lanes()
end
