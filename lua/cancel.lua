--[[ cancel: an operator or a producer cancels jobs. A job that waits is removed at once. A job that runs is marked, and
its worker sees the mark when it next extends its leases.

ONLY has the states, separated by spaces, of the jobs that may be cancelled; empty: any state. A job in another state is
not changed.

ENDED is how many claims of the job had ended when the caller read the job's children; empty: the caller has not read
them. If another claim has ended since, the job is not changed, because it may have children that the caller does not
know. (The worker of a claim that is in force knows the children that the claim has enqueued.)

Transitions: ready -cancelled-> none, scheduled -cancelled-> none, parked -cancelled-> none,
    running -cancel_requested-> cancelling
Flags: allow-oom
Keys: jobs state
Unread: jobs
Args: slot number:int by why only
Each: id ended
Uses: call(open_call close_call now) parts(run_parts) emit(emit quoted) state(write_line count is_claimed)
    jobs_by_id(decide_by_id) removal(end_job) unqueue(unqueue) lane_write(check_lanes write_lanes) batch(call_many)
Returns: ok {ID cancelled|cancelling|moved|ready|scheduled|parked|running|dead|gone}… | epoch
Invariants: I6, I10
]]

local refusal = open_call()
if refusal then
  return refusal
end
check_keys()

--- Return whether more claims of a job have ended than ENDED says.
local function has_run(job, ended)
  return count(job, 'claim') - (is_claimed(job) and 1 or 0) ~= tonumber(ended)
end

local cancelled, requested, flagged = {}, {}, {}
local answer = decide_by_id(function(id, job, i)
  local _, ended = each(i)
  if only ~= '' and not only:find(job.state, 1, true) then
    return nil
  elseif ended ~= '' and has_run(job, ended) then
    return 'moved'
  elseif job.state == 'ready' or job.state == 'scheduled' or job.state == 'parked' then
    cancelled[#cancelled + 1] = '["' .. id .. '"]'
    end_job(id, job, 'cancelled')
    unqueue(id, job)
    job.state = 'gone'
    return 'cancelled'
  elseif job.state == 'running' then
    requested[#requested + 1] = '["' .. id .. '",' .. quoted(job.fence) .. ']'
    job.state, job.since = 'cancelling', now
    flagged[#flagged + 1], flagged[#flagged + 2] = id, write_line(job)
  end
end)
check_lanes()
run_parts('check')

emit('cancelled', now, by, cancelled, why)
emit('cancel_requested', now, by, requested, why)
run_parts('write')
call_many('HSET', state, flagged)
write_lanes()
return close_call(answer)
