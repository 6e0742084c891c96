--[[ claim: a worker takes jobs. The steps are in claim/claiming.

Transitions: scheduled -promoted-> ready, parked -woken-> ready, parked -expired-> dead, ready -claimed-> running, running -lease_expired-> ready,
    running -lease_expired-> dead, cancelling -cancelled-> none, dead -pruned-> none, ready -expired-> none,
    ready -expired-> dead, scheduled -expired-> none, scheduled -expired-> dead
Flags: allow-oom
Args: slot number:int worker limit:int bytes_max:int sweep_max:int
Uses: call(open_call) claiming(replay decide_claim emit_claim write_claim close_claim)
Returns: ok HEADER {JOB VALUE}… | epoch. HEADER is NOW NEXT_DUE MORE FENCE in one text: NEXT_DUE is - if nothing is scheduled;
    MORE is 1 if jobs are left that another claim may take, and 2 more if schedules are due (see tick); FENCE is - if
    nothing was claimed. JOB is ID, ID LANE, or
    ID LANE CLAIM FAILED LOST if the job was claimed before, with - for no lane; BASE LIFE follow if it has a
    box, with - for no base. VALUE is the job's in `jobs`, its JSON last
Invariants: I2, I3, I4, I6, I9, I10
]]

local refusal = open_call(replay)
if refusal then
  return refusal
end
decide_claim(0)

emit_claim()
write_claim()
return close_claim('')
