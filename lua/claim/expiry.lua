--[[ expiry: jobs that wait and whose deadline is over. They leave; one that has failed or lost a worker before is dead, so that an
operator sees it.

Such a job is met in three ways: its member of `expiring` is over, it is due, or a claim comes to it in line.

Keys: state
Args: worker
Uses: call(now now_text) state(read_line write_line count) ended(leaves dies) deadline(is_over write_deadlines)
    withdrawal(withdraw write_withdrawn) lane_standing(meet_lanes) emit(emit) batch(call_many)
]]

local events   -- what the event says of each; nil if there are none
local lines    -- ids and lines of those that die
local seen     -- their ids

local function reset()
  events, lines, seen = nil, nil, nil
end

--- A job expires, which stands nowhere in line any more.
local function expire_here(id, job)
  if not events then
    events, lines, seen = {}, {}, {}
  end
  seen[id] = true
  -- If its line was to be written anew, it no longer is.
  job.is_taken = true
  if count(job, 'failed') == 0 and count(job, 'lost') == 0 then
    leaves(id, job)
    events[#events + 1] = '["' .. id .. '",null]'
    return
  end
  job.since, job.due = now, nil
  dies(id, job, 'expired')
  lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
  events[#events + 1] = '["' .. id .. '",1]'
end

--- The members of these jobs in `expiring` are over. Those that still wait expire; `decided` gets their ids. `held` are their lines.
local function expire_waiting(ids, held, decided)
  local waiting_jobs, names = {}, {}
  for i = 1, #ids do
    local id = ids[i]
    local job = read_line(held[i])
    if job and not (seen and seen[id]) and (job.state == 'ready' or job.state == 'scheduled') and is_over(job, now) then
      job.id = id
      waiting_jobs[#waiting_jobs + 1] = job
      names[#names + 1] = job.state == 'ready' and job.lane or nil
    end
  end
  if #names > 0 then
    meet_lanes(names)
  end
  for i = 1, #waiting_jobs do
    local job = waiting_jobs[i]
    decided[job.id] = true
    withdraw(job.id, job)
    expire_here(job.id, job)
  end
end

--- Append their event.
local function emit_expired()
  emit('expired', now_text, worker, events)
end

--- Write the lines of those that die, where they waited no longer, and until when the others may.
local function write_expired()
  call_many('HSET', state, lines)
  write_withdrawn()
  write_deadlines()
end
