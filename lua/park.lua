--[[ park: the holder of a claim parks its job. The job waits then, without a worker, until one of the entries that it
waits for is ripe (include/boxes/ripe). If one is ripe already, the job is woken in the same call.

A failover may have taken entries that the worker has saved. If the job has no box LIFE, or its box lacks an entry of WAITS
or KNOWS, the answer is `behind`: nothing changes, and the claim stays in force. The worker then saves its entries again,
and parks the job again.

Transitions: running -parked-> parked, parked -woken-> ready, cancelling -cancelled-> none
Flags: allow-oom
Keys: boxes parked
Args: slot number:int worker
Each: id fence waits life knows
Uses: call(open_call close_call now now_text) emit(emit) ripe(look_for_ripe is_behind) batch(call_many)
    outcomes(end_claims make_ready make_parked write_outcomes)
Returns: ok {ID parked|ready|behind|cancelled|gone|stale}… | with | epoch. WAITS are the numbers of entries, with commas. KNOWS are
    the numbers of other entries that the worker has saved, with commas, and `+` after a number that is not only begun
Invariants: I2, I6, I9, I20, I22, I23
]]

local refusal = open_call()
if refusal then
  return refusal
elseif not boxes then
  return {'with', 'durable'}
end

local said, woken, index = {}, {}, {}
local is_ripe, cause, due, is_lost   -- of what the record's job waits for
local answer, refusals, cancelled = end_claims(function(i, job)
  local id, fence, waits = each(i)
  said[#said + 1] = '["' .. id .. '","' .. fence .. '",' .. (due or 'null') .. ',"' .. waits .. '"]'
  if is_ripe then
    woken[#woken + 1] = '["' .. id .. '",' .. (cause or 'null') .. ']'
    make_ready(id, job, 0)
  else
    index[#index + 1], index[#index + 2] = now_text, id
    make_parked(id, job, waits, due)
  end
end, function(i, job)
  local _, _, waits, life, knows = each(i)
  is_ripe, cause, due, is_lost = look_for_ripe(life, waits)
  return is_lost or job.life ~= life or knows ~= '' and is_behind(life, knows)
end)

emit('parked', now, worker, said)
emit('woken', now, worker, woken)
write_outcomes('park', refusals, cancelled)
call_many('ZADD', parked, index)
return close_call(answer)
