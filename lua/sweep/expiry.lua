--[[ expiry: jobs that wait and whose deadline is over. They leave; one that has failed or lost a worker before is dead, so that an
operator sees it.

Such a job is met in three ways: its member of `expiring` is over, it is due, or a claim comes to it in line. The `seldom` list
`expired` has what the event says of each, `expired_lines` ids and lines of those that die.

Keys: state
Args: worker
Lists: expired expired_lines
Reads: ended(died)
Uses: call(now now_text) seldom(seldom seldom_list) state(read_line write_line count) ended(leaves dies check_ended write_ended)
    deadline(is_over write_deadlines) withdrawal(withdraw write_withdrawn) lane_standing(meet_lanes) emit(emit) batch(call_many)
    dead(check_dead index_dead)
]]

--- A job expires, which stands nowhere in line any more.
local function expire_here(id, job)
  local events = seldom_list('expired')
  -- If its line was to be written anew, it no longer is.
  job.is_taken = true
  if count(job, 'failed') == 0 and count(job, 'lost') == 0 then
    leaves(id, job, 'expired')
    events[#events + 1] = '["' .. id .. '",null]'
    return
  end
  job.since, job.due = now, nil
  dies(id, job, 'expired')
  local lines = seldom_list('expired_lines')
  lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
  events[#events + 1] = '["' .. id .. '",1]'
end

--- The members of these jobs in `expiring` are over. Those that still wait expire, but for those that are `decided`, which gets their
--- ids. `held` are their lines.
local function expire_waiting(ids, held, decided)
  local waiting_jobs, names = {}, {}
  for i = 1, #ids do
    local id = ids[i]
    local job = read_line(held[i])
    if job and not decided[id] and (job.state == 'ready' or job.state == 'scheduled') and is_over(job, now) then
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

--- Check what `write_seldom` needs. It has to be called only if anything is `seldom`, as the two below.
local function check_seldom()
  check_ended()
  if seldom.died then
    check_dead()
  end
end

--- Append the event of those that expire.
local function emit_expired()
  emit('expired', now_text, worker, seldom.expired)
end

--- Write what becomes of the jobs that end in a claim, and until when others may be claimed.
local function write_seldom()
  call_many('HSET', state, seldom.expired_lines)
  write_withdrawn()
  write_deadlines()
  write_ended()
  if seldom.died then
    index_dead(seldom.died, now)
  end
end
