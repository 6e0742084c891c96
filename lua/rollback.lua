--[[ rollback: the holder of a claim gives it back, having done nothing. It spends no attempt. The job returns to its
place in line, in another lane if the policy of its task has changed, at once or after a delay that the worker asks for.
A job whose task or arguments the worker does not know waits, longer each time, for a worker that knows them, and dies
if no such worker claims it for too long.

A failover may have taken entries that the worker has saved. If the job has no box LIFE, or its box lacks an entry of KNOWS,
the answer is `behind`, as in park: nothing changes, and the claim stays in force.

Transitions: running -rolled_back-> ready, running -rolled_back-> scheduled, running -died-> dead,
    cancelling -cancelled-> none
Flags: allow-oom
Keys: boxes
Args: slot number:int worker backoff_ms:int backoff_max_ms:int unknown_max:int
Each: id fence reason error lane delay_ms:int life knows
Uses: call(open_call close_call now) state(count rank) emit(emit quoted) ripe(is_behind)
    outcomes(end_claims make_ready make_scheduled make_dead write_outcomes)
Returns: ok {ID ready|scheduled|dead|behind|cancelled|gone|stale}… | with | epoch. REASON is unknown_task or
    unknown_arguments, or any other word for a plain return; LANE is empty, or the lane to which the job belongs;
    DELAY_MS is 0, except for a plain return after which the job waits; KNOWS are the numbers of the entries that the worker
    has saved, as in park, or empty
Invariants: I2, I3, I4 (no failure counted), I6, I9, I10
]]

local refusal = open_call()
if refusal then
  return refusal
end

local given_back, died, lacks_key = {}, {}, false
local answer, refusals, cancelled = end_claims(function(i, job)
  local id, fence, reason, failure, lane, delay_ms = each(i)
  local moved, due = 'null'
  if lane ~= '' then
    -- A claim does not give the worker the job's priority.
    lane = rank(job) .. lane:sub(2)
  end
  if lane ~= '' and lane ~= job.lane then
    job.lane, moved = lane, quoted(lane)
  end
  if reason:sub(1, 8) == 'unknown_' then
    local unknown = count(job, 'unknown') + 1
    if unknown >= unknown_max then
      make_dead(id, job, reason, failure)
      died[#died + 1] = '["' .. id .. '","' .. fence .. '","' .. reason .. '",' .. count(job, 'failed') ..
        ',' .. failure .. ']'
      return
    end
    job.unknown = unknown
    due = make_scheduled(id, job, math.floor(math.min(backoff_ms * 2 ^ (unknown - 1), backoff_max_ms)))
  else
    due = make_ready(id, job, delay_ms)
  end
  given_back[#given_back + 1] = '["' .. id .. '","' .. fence .. '",' .. due .. ',"' .. reason .. '",' ..
    count(job, 'unknown') .. ',' .. moved .. ']'
end, function(i, job)
  local _, _, _, _, _, _, life, knows = each(i)
  lacks_key = lacks_key or knows ~= '' and not boxes
  return knows ~= '' and not lacks_key and (job.life ~= life or is_behind(life, knows))
end)
if lacks_key then
  return {'with', 'durable'}
end

emit('rolled_back', now, worker, given_back)
emit('died', now, worker, died)
write_outcomes('rollback', refusals, cancelled)
return close_call(answer)
