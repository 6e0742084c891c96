--[[ rollback: the holder of a claim gives it back, having done nothing. It spends no attempt. The job returns to
its place in line; only a job whose task or arguments the worker does not know waits, longer each time, for a worker
that knows them, and dies when none came for too long.

Transitions: running -rolled_back-> ready, running -rolled_back-> scheduled, running -died-> dead,
    cancelling -cancelled-> none
Flags: allow-oom
Keys: meta state jobs ready scheduled leases dead outbox slots expiring wake
Args: slot number:int worker backoff_ms:int backoff_max_ms:int unknown_max:int
Each: id fence reason error
Uses: call emit state settle ready due dead wake batch
Returns: ok {ID ready|scheduled|dead|cancelled|gone|stale}… | epoch. REASON is unknown_task or
    unknown_arguments, or any other word for a plain return
Invariants: I2, I4 (no failure counted), I6, I9
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

local given_back, died, cancelled = {}, {}, {}
local ended, gone, buried, lines, due, answer = {}, {}, {}, {}, {}, {}
local returning = {[0] = {}, {}, {}, {}}
local earlier, claimable = false, false
for i = 1, each_count do
  local id, fence, reason, failure = each(i)
  local job = read_line(held[i])
  local outcome = refusals[i]
  if job and job.state == 'cancelling' then
    outcome = 'cancelled'
    gone[#gone + 1] = id
    cancelled[#cancelled + 1] = '["' .. id .. '","' .. fence .. '"]'
  elseif job then
    local at = 'null'
    drop_claim(job)
    job.since = now
    if reason:sub(1, 8) ~= 'unknown_' then
      outcome = 'ready'
      local list = returning[rank(job)]
      list[#list + 1] = {id, count(job, 'seq')}
      claimable = true
    else
      local unknown = count(job, 'unknown') + 1
      if unknown >= unknown_max then
        outcome = 'dead'
        job.reason = reason
        buried[#buried + 1] = id
        died[#died + 1] = '["' .. id .. '","' .. fence .. '","' .. reason .. '",' .. count(job, 'failed') ..
          ',' .. failure .. ']'
      else
        outcome = 'scheduled'
        job.unknown = unknown
        at = now + math.floor(math.min(backoff_ms * 2 ^ (unknown - 1), backoff_max_ms))
        job.due = at
        due[#due + 1], due[#due + 2] = at, 'job|' .. id
        earlier = earlier or not next_due or at < next_due
      end
    end
    if outcome ~= 'dead' then
      given_back[#given_back + 1] = '["' .. id .. '","' .. fence .. '",' .. at .. ',"' .. reason .. '",' ..
        count(job, 'unknown') .. ']'
    end
    job.state = outcome
    lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
  end
  if job then
    ended[#ended + 1] = id
  end
  answer[#answer + 1], answer[#answer + 2] = id, outcome
end

emit('rolled_back', now, worker, given_back)
emit('died', now, worker, died)
emit('cancelled', now, worker, cancelled)
emit_refused(refusals, 'rollback', now, worker)
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
