--[[ fail: the holder of a claim reports failure. The worker says whether and when the job should be retried;
this script counts the failure and decides, so that no worker can grant an attempt that the job does not have.

Transitions: running -retried-> scheduled, running -retried-> ready, running -died-> dead,
    cancelling -cancelled-> none
Flags: allow-oom
Keys: meta state jobs ready scheduled leases dead outbox slots expiring wake
Args: slot number:int worker
Each: id fence verdict delay_ms:int reason error
Uses: call emit state settle ready due dead wake batch
Returns: ok {ID scheduled|ready|dead|cancelled|gone|stale}… | epoch. VERDICT is retry or final; REASON is the
    word that a final failure dies with; ERROR is a JSON object
Invariants: I2, I4 (failures ≤ max_attempts), I6, I9
]]

local refusal = open_call()
if refusal then
  return refusal
end
local held, refusals = read_held()
redis.call('HLEN', jobs)
redis.call('ZCARD', leases)
redis.call('ZCARD', dead)
lengths()
local next_due = earliest_due(0)
local sleeping = wake_is_empty()

local retried, died, cancelled = {}, {}, {}
local ended, gone, buried, lines, due, answer = {}, {}, {}, {}, {}, {}
local returning = {[0] = {}, {}, {}, {}}
local earlier, claimable = false, false
for i = 1, each_count do
  local id, fence, verdict, delay_ms, reason, failure = each(i)
  local job = read_line(held[i])
  local outcome = refusals[i]
  if job and job.state == 'cancelling' then
    outcome = 'cancelled'
    gone[#gone + 1] = id
    cancelled[#cancelled + 1] = '["' .. id .. '","' .. fence .. '"]'
  elseif job then
    local failed = count(job, 'failed') + 1
    drop_claim(job)
    job.failed, job.since = failed, now
    if verdict == 'retry' and failed < count(job, 'attempts') then
      local at = 'null'
      if delay_ms > 0 then
        at = now + delay_ms
        job.due = at
        due[#due + 1], due[#due + 2] = at, 'job|' .. id
        earlier = earlier or not next_due or at < next_due
      else
        local list = returning[rank(job)]
        list[#list + 1] = {id, count(job, 'seq')}
        claimable = true
      end
      outcome = delay_ms > 0 and 'scheduled' or 'ready'
      retried[#retried + 1] = '["' .. id .. '","' .. fence .. '",' .. at .. ',' .. failed .. ',' .. failure .. ']'
    else
      outcome = 'dead'
      job.reason = verdict == 'retry' and 'attempts_spent' or reason
      buried[#buried + 1] = id
      died[#died + 1] = '["' .. id .. '","' .. fence .. '","' .. job.reason .. '",' .. failed .. ',' .. failure .. ']'
    end
    job.state = outcome
    lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
  end
  if job then
    ended[#ended + 1] = id
  end
  answer[#answer + 1], answer[#answer + 2] = id, outcome
end

emit('retried', now, worker, retried)
emit('died', now, worker, died)
emit('cancelled', now, worker, cancelled)
emit_refused(refusals, 'fail', now, worker)
call_many('HDEL', state, gone)
call_many('HDEL', jobs, gone)
call_many('HSET', state, lines)
call_many('ZREM', leases, ended)
call_many('ZADD', scheduled, due)
for priority = 0, 3 do
  return_ready(priority, returning[priority])
end
bury(buried, now)
if sleeping and (claimable or earlier) then
  push_token()
end
return close_call(answer)
