--[[ fail: the holder of a claim reports failure. The worker says whether and when the job should be retried;
this script counts the failure and decides, so that no worker can grant an attempt that the job does not have.

Transitions: running -retried-> scheduled, running -retried-> ready, running -died-> dead,
    cancelling -cancelled-> none
Flags: allow-oom
Keys: meta state jobs ready waiting lanes open blocked holders caps rates fair scheduled leases dead outbox slots
    expiring wake
Args: slot number:int worker
Each: id fence verdict delay_ms:int reason error
Uses: call emit settle ends
Returns: ok {ID scheduled|ready|dead|cancelled|gone|stale}… | epoch. VERDICT is retry or final; REASON is the
    word that a final failure dies with; ERROR is a JSON object
Invariants: I2, I3, I4 (failures ≤ max_attempts), I6, I9, I10
]]

local refusal = open_call()
if refusal then
  return refusal
end
local held, refusals = read_held()
prepare_ends()

local retried, died, cancelled, answer = {}, {}, {}, {}
for i = 1, each_count do
  local id, fence, verdict, delay_ms, reason, failure = each(i)
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
    job.failed = count(job, 'failed') + 1
    if verdict == 'retry' and job.failed < count(job, 'attempts') then
      local at = 'null'
      if delay_ms > 0 then
        at = now + delay_ms
        make_scheduled(id, job, now, at)
      else
        make_ready(id, job, now)
      end
      retried[#retried + 1] = '["' .. id .. '","' .. fence .. '",' .. at .. ',' .. job.failed .. ',' .. failure .. ']'
    else
      make_dead(id, job, now, verdict == 'retry' and 'attempts_spent' or reason)
      died[#died + 1] = '["' .. id .. '","' .. fence .. '","' .. job.reason .. '",' .. job.failed .. ',' .. failure .. ']'
    end
    outcome = job.state
  end
  answer[#answer + 1], answer[#answer + 2] = id, outcome
end
settle_lanes()

emit('retried', now, worker, retried)
emit('died', now, worker, died)
emit('cancelled', now, worker, cancelled)
emit_refused(refusals, 'fail', now, worker)
write_ends(now)
return close_call(answer)
