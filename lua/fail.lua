--[[ fail: the holder of a claim reports failure. The worker says whether the job should be retried, and when. This
script counts the failure and decides whether an attempt is left, so that no worker can give a job more attempts than it
has.

A failover may have taken entries that the worker has saved. If the job has no box LIFE, or its box lacks an entry of KNOWS,
the answer is `behind`, as in park: nothing changes, and the claim stays in force.

Transitions: running -retried-> scheduled, running -retried-> ready, running -died-> dead,
    cancelling -cancelled-> none
Flags: allow-oom
Keys: boxes
Args: slot number:int worker
Each: id fence verdict delay_ms:int reason error life knows
Uses: call(open_call close_call now) state(count) tries(may_run_again) emit(emit) ripe(is_behind)
    outcomes(end_claims make_ready make_dead write_outcomes) lane_opening(note_end pauses_of_failures)
Returns: ok {ID scheduled|ready|dead|behind|cancelled|gone|stale}… | with | epoch. VERDICT is retry or final; REASON is the reason of
    the death for a final failure; ERROR is a JSON object; its `excepted` has the families of the
    job's breakers that do not count the failure, joined by spaces; KNOWS are the numbers of the entries that the worker
    has saved, as in park, or empty
Invariants: I2, I3, I4 (failures ≤ max_attempts, of a durable job those since its last saved step), I6, I9, I10
]]

local refusal = open_call()
if refusal then
  return refusal
end

local retried, died, lacks_key = {}, {}, false
local answer, refusals, cancelled = end_claims(function(i, job)
  local id, fence, verdict, delay_ms, reason, failure = each(i)
  job.failed = count(job, 'failed') + 1
  note_end(id, fence, failure:match('"excepted":%s*"([^"]*)"'))
  if verdict == 'retry' and may_run_again(job, 'failed', 'attempts') then
    local due = make_ready(id, job, delay_ms)
    retried[#retried + 1] = '["' .. id .. '","' .. fence .. '",' .. due .. ',' .. job.failed .. ',' .. failure .. ']'
  else
    make_dead(id, job, verdict == 'retry' and 'attempts_spent' or reason, failure)
    died[#died + 1] = '["' .. id .. '","' .. fence .. '","' .. job.reason .. '",' .. job.failed .. ',' .. failure .. ']'
  end
end, function(i, job)
  local _, _, _, _, _, _, life, knows = each(i)
  lacks_key = lacks_key or knows ~= '' and not boxes
  return knows ~= '' and not lacks_key and (job.life ~= life or is_behind(life, knows))
end)
if lacks_key then
  return {'with', 'durable'}
end

emit('scope_paused', now, worker, pauses_of_failures())
emit('retried', now, worker, retried)
emit('died', now, worker, died)
write_outcomes('fail', refusals, cancelled)
return close_call(answer)
