--[[ expiry: lets jobs expire that wait past their deadline. They leave Redis. A job that has failed or lost a worker
before, or is parked, becomes dead instead, so that an operator sees it.

Such a job is found in three ways: its member of `expiring` is over, it is due, or a claim reaches it in line. The list
`expired` has the event's part about each job, `expired_lines` the ids and lines of jobs that die.

Keys: state
Lists: expired expired_lines
Uses: call(now now_text) parts(list_of) state(read_line write_line count) removal(end_job) death(mark_dead)
    deadline(is_over) unqueue(unqueue) lane_states(meet_lanes) emit(emit) batch(call_many)
]]

local lists = {}

--- Let a job expire that is in no line any more.
local function expire_here(id, job)
  local events = list_of(lists, 'expired')
  -- Marked as taken, so that the sweep does not write its line.
  job.is_taken = true
  if job.state ~= 'parked' and count(job, 'failed') == 0 and count(job, 'lost') == 0 then
    end_job(id, job, 'expired')
    events[#events + 1] = '["' .. id .. '",null]'
    return
  end
  job.since, job.due = now, nil
  mark_dead(id, job, 'expired')
  job.waits = nil
  local lines = list_of(lists, 'expired_lines')
  lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
  events[#events + 1] = '["' .. id .. '",1]'
end

--- Let those of these jobs expire that still wait; their members in `expiring` are over. Jobs that are in `decided` are
--- left out, and the ids of expired jobs are added to it. `held` are the jobs' lines.
local function expire_waiting(ids, held, decided)
  local waiting_jobs, names = {}, {}
  for i = 1, #ids do
    local id = ids[i]
    local job = read_line(held[i])
    if job and not decided[id] and (job.state == 'ready' or job.state == 'scheduled' or job.state == 'parked') and is_over(job, now) then
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
    unqueue(job.id, job)
    expire_here(job.id, job)
  end
end

local function append(actor)
  emit('expired', now_text, actor, lists.expired)
end

local function write()
  call_many('HSET', state, lists.expired_lines)
end
