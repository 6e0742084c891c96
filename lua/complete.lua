--[[ complete: the holder of a claim reports success. The job leaves Redis; its history is in the outbox.

Transitions: running -succeeded-> none, cancelling -succeeded-> none
Flags: allow-oom
Keys: meta state jobs waiting lanes open blocked holders caps rates fair scheduled leases outbox slots expiring wake
Args: slot number:int worker
Each: id fence
Unread: jobs scheduled
Uses: call(open_call close_call now_text) emit(emit) fences(read_held emit_refused) state(lane_in)
    queue_cap(wake_if_below_cap) lane_opening(note_release free_places) lane_write(check_lanes write_lanes)
    batch(call_many)
Returns: ok {REFUSED_ID gone|stale}… | epoch
Invariants: I2, I3, I6, I9 (a fence that is not in force settles nothing), I10
]]

local refusal = open_call()
if refusal then
  return refusal
end
local held, refusals, ids, fences = read_held()
check_keys()

local events, done, answer = {}, {}, {}
for i = 1, each_count do
  local id = ids[i]
  if held[i] then
    done[#done + 1] = id
    events[#events + 1] = '["' .. id .. '","' .. fences[i] .. '"]'
    note_release(lane_in(held[i]), id)
  else
    answer[#answer + 1], answer[#answer + 2] = id, refusals[i]
  end
end
free_places()
wake_if_below_cap(#done)
check_lanes()

emit('succeeded', now_text, worker, events)
emit_refused(refusals, 'complete', now_text, worker)
call_many('HDEL', state, done)
call_many('HDEL', jobs, done)
call_many('ZREM', leases, done)
write_lanes()
return close_call(answer)
