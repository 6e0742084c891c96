--[[ turn: a worker reports jobs that succeeded, and takes others: `complete` and `claim` in one call.

The sweep frees the places of the jobs that succeeded, together with those of expired leases, so the claim in this call
can use them. A job that is reported here does not lose its lease here.

Transitions: running -succeeded-> none, cancelling -succeeded-> none, scheduled -promoted-> ready, parked -woken-> ready, parked -expired-> dead, ready -claimed-> running,
    running -lease_expired-> ready, running -lease_expired-> dead, cancelling -cancelled-> none, dead -pruned-> none,
    ready -expired-> none,
    ready -expired-> dead, scheduled -expired-> none, scheduled -expired-> dead
Flags: allow-oom
Keys: jobs
Args: slot number:int worker limit:int bytes_max:int sweep_max:int
Each: id fence
Tail: a handler's result as JSON, or ! and why it is not kept; its note is the digest, see include/results/success_results
Unread: jobs
Uses: call(open_call) success(decide_success emit_success write_success)
    claiming(replay decide_claim emit_claim write_claim close_claim)
Returns: ok HEADER {JOB VALUE}… | epoch. HEADER, JOB and VALUE are those of `claim`; after its four words, HEADER has
    REFUSED_ID gone|stale for each success that is refused
Invariants: I2, I3, I4, I6, I9 (a fence that is not in force settles nothing), I10
]]

local refusal = open_call(replay)
if refusal then
  return refusal
end
local ended, refused = decide_success()
if decide_claim(ended) == 0 then
  check_keys()   -- a job that is taken was read from `jobs`
end

emit_success()
emit_claim()
write_success()
write_claim()
return close_claim(#refused == 0 and '' or ' ' .. table.concat(refused, ' '))
