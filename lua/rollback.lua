--[[ rollback: the holder of a claim gives it back, having done nothing. It spends no attempt. The job returns to
its place in line, in another lane if the policy of its task has changed, at once or after a delay that the worker asks
for. A job whose task or arguments the worker does not know waits, longer each time, for a worker that knows them, and
dies when none came for too long.

Transitions: running -rolled_back-> ready, running -rolled_back-> scheduled, running -died-> dead,
    cancelling -cancelled-> none
Flags: allow-oom
Keys: meta state jobs ready waiting lanes open blocked holders caps rates fair scheduled leases dead outbox slots
    expiring wake
Args: slot number:int worker backoff_ms:int backoff_max_ms:int unknown_max:int
Each: id fence reason error lane delay_ms:int
Uses: call emit settle ends
Returns: ok {ID ready|scheduled|dead|cancelled|gone|stale}… | epoch. REASON is unknown_task or
    unknown_arguments, or any other word for a plain return; LANE is empty, or the lane that the job belongs into;
    DELAY_MS is 0 but for a plain return that is to wait
Invariants: I2, I3, I4 (no failure counted), I6, I9, I10
]]

local refusal = open_call()
if refusal then
  return refusal
end
local held, refusals = read_held()
prepare_ends()

local given_back, died, cancelled, answer = {}, {}, {}, {}
for i = 1, each_count do
  local id, fence, reason, failure, lane, delay_ms = each(i)
  local job = read_line(held[i])
  local outcome = refusals[i]
  if job then
    end_claim(id, job)
  end
  if job and job.state == 'cancelling' then
    outcome = 'cancelled'
    forget(id)
    cancelled[#cancelled + 1] = '["' .. id .. '","' .. fence .. '"]'
  elseif job then
    local at, moved = 'null', 'null'
    if lane ~= '' then
      -- A claim does not tell the worker the job's priority.
      lane = rank(job) .. lane:sub(2)
    end
    if lane ~= '' and lane ~= job.lane then
      job.lane, moved = lane, quoted(lane)
    end
    if reason:sub(1, 8) ~= 'unknown_' then
      if delay_ms > 0 then
        at = now + delay_ms
        make_scheduled(id, job, now, at)
      else
        make_ready(id, job, now)
      end
    else
      local unknown = count(job, 'unknown') + 1
      if unknown >= unknown_max then
        make_dead(id, job, now, reason)
        died[#died + 1] = '["' .. id .. '","' .. fence .. '","' .. reason .. '",' .. count(job, 'failed') ..
          ',' .. failure .. ']'
      else
        job.unknown = unknown
        at = now + math.floor(math.min(backoff_ms * 2 ^ (unknown - 1), backoff_max_ms))
        make_scheduled(id, job, now, at)
      end
    end
    outcome = job.state
    if outcome ~= 'dead' then
      given_back[#given_back + 1] = '["' .. id .. '","' .. fence .. '",' .. at .. ',"' .. reason .. '",' ..
        count(job, 'unknown') .. ',' .. moved .. ']'
    end
  end
  answer[#answer + 1], answer[#answer + 2] = id, outcome
end
settle_lanes()

emit('rolled_back', now, worker, given_back)
emit('died', now, worker, died)
emit('cancelled', now, worker, cancelled)
emit_refused(refusals, 'rollback', now, worker)
write_ends(now)
return close_call(answer)
