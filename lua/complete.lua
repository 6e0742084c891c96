--[[ complete: the holder of a claim reports success, without claiming other jobs (`turn` does both). The job leaves
Redis; its history is in the outbox.

Transitions: running -succeeded-> none, cancelling -succeeded-> none
Flags: allow-oom
Keys: jobs
Args: slot number:int worker
Each: id fence
Tail: a handler's result as JSON, or ! and why it is not kept; its note is the digest, see include/results/success_results
Unread: jobs
Uses: call(open_call close_call) parts(run_parts) success(decide_success emit_success write_success)
    queue_cap(wake_if_below_cap) lane_opening(free_places) lane_write(check_lanes write_lanes)
Returns: ok {REFUSED_ID gone|stale}… | epoch
Invariants: I2, I3, I6, I9 (a fence that is not in force settles nothing), I10
]]

local refusal = open_call()
if refusal then
  return refusal
end
local ended, answer = decide_success()
check_keys()
free_places()
wake_if_below_cap(ended)
check_lanes()
run_parts('check')

emit_success()
write_success()
run_parts('write')
write_lanes()
return close_call(answer)
