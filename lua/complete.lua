--[[ complete: the holder of a claim reports success, and claims nothing meanwhile (that is `turn`). The job leaves Redis; its
history is in the outbox.

Transitions: running -succeeded-> none, cancelling -succeeded-> none
Flags: allow-oom
Keys: jobs scheduled
Args: slot number:int worker
Each: id fence
Tail: what a handler returned, JSON, or ! and why it is not kept; its note is the digest, see include/job/ended
Unread: scheduled jobs
Uses: call(open_call close_call) seldom(seldom) success(decide_success emit_success write_success) queue_cap(wake_if_below_cap)
    lane_opening(free_places) lane_write(check_lanes write_lanes) ended(check_ended write_ended)
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
if seldom.any then
  check_ended()
end

emit_success()
write_success()
if seldom.any then
  write_ended()
end
write_lanes()
return close_call(answer)
