--[[ complete: the holder of a claim reports success. The job leaves Redis; its history is in the outbox.

Transitions: running -succeeded-> none, cancelling -succeeded-> none
Flags: allow-oom
Keys: meta state jobs waiting lanes open blocked holders caps rates fair scheduled leases outbox slots expiring wake
Args: slot number:int worker
Each: id fence
Uses: call emit settle state lanes room wake batch
Returns: ok {REFUSED_ID gone|stale}… | epoch
Invariants: I2, I3, I6, I9 (a fence that is not in force settles nothing), I10
]]

local refusal = open_call()
if refusal then
  return refusal
end
local held, refusals, ids, fences = read_held()
-- Only so that a key of another type is an error here, before the first write, and not after it.
redis.call('HLEN', jobs)
redis.call('ZCARD', scheduled)

local events, done, answer = {}, {}, {}
for i = 1, each_count do
  local id = ids[i]
  if held[i] then
    done[#done + 1] = id
    events[#events + 1] = '["' .. id .. '","' .. fences[i] .. '"]'
    release(lane_in(held[i]), id)
  else
    answer[#answer + 1], answer[#answer + 2] = id, refusals[i]
  end
end
free_places()
local wakes = (frees_queue(#done) or opened) and wake_is_empty()
check_lanes()

emit('succeeded', now_text, worker, events)
emit_refused(refusals, 'complete', now_text, worker)
call_many('HDEL', state, done)
call_many('HDEL', jobs, done)
call_many('ZREM', leases, done)
write_lanes()
if wakes then
  push_token()
end
return close_call(answer)
