--[[ id_overdue: frees the id of a job that waits past its deadline, for a new job with the same id. No claim of the old
job may begin, so the old job expires before the call checks whether a job has the id. Otherwise the new job would be a
duplicate of a job that never runs, until some worker claims.

A job that has failed or lost a worker keeps its id, since it will be dead (see sweep/expiry). A job that was claimed
and whose id is remembered keeps it as well, since the id stays remembered after its end. So does any job
whose id a record with `unclaimed` asks for (see include/results/idempotency).

The list `overdue_here` has the event's part about each expired job.

Keys: state
Lists: overdue_here
Uses: call(now_text now) parts(list_of) state(read_line count) removal(end_job) deadline(is_over) unqueue(unqueue)
    emit(emit) batch(read_many) idempotency(leave_id counts_unclaimed)
]]

local lists = {}

--- Return whether a job gives up its id: it waits past its deadline and does not keep the id.
local function gives_up_id(job)
  local is_waiting = job and (job.state == 'ready' or job.state == 'scheduled')
  if not is_waiting or not is_over(job, now) or count(job, 'failed') > 0 or count(job, 'lost') > 0 then
    return false
  end
  return not (job.claim and job.once and tonumber(job.once) > now)
end

--- Expire those of these jobs that are overdue. `live` has, by record, whether Redis has its job; it is set to false
--- for an expired job.
local function expire_overdue(ids, live)
  local asked, records = {}, {}
  for i = 1, #ids do
    if live[i] and not counts_unclaimed(i) then
      asked[#asked + 1], records[#records + 1] = ids[i], i
    end
  end
  local lines, gone = read_many(state, asked), {}
  for k = 1, #asked do
    local id, job = asked[k], read_line(lines[k])
    if not gone[id] and gives_up_id(job) then
      gone[id] = true
      unqueue(id, job)
      end_job(id, job, 'expired')
      leave_id(id)
      local events = list_of(lists, 'overdue_here')
      events[#events + 1] = '["' .. id .. '",null]'
    end
    if gone[id] then
      live[records[k]] = false
    end
  end
end

--- Append the events. This runs before the events of the new jobs with these ids.
local function append(actor)
  emit('expired', now_text, actor, lists.overdue_here)
end
