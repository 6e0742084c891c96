--[[ spend: the holder of a claim says what its job has really taken of the units that its rates count, before it ends the
claim. The rates are corrected by the difference to what the claim took: a lower cost comes back at once, and a higher one
must come back before the next job begins.

A worker sends it before the settlement, and only for jobs that said something. A worker that has
lost the claim neither pays nor gets anything back. Without this call, what the claim took remains.

A job may also pause scopes, because the service behind them asks for it: no job of these scopes begins until then. PAUSES
are `SCOPE|MS`, with spaces between them; a scope must be a rate of the job.

TAKEN is like the costs of a job (`tokens:1800,points:3`); a cost may be 0. A unit that no rate of the job counts is left
out, and the record is `unknown` if none is left.

Flags: allow-oom
Args: slot number:int worker
Each: id fence taken pauses
Uses: call(open_call close_call) spending(check_spends decide_spends write_spends)
Returns: ok {ID gone|stale|unknown}… | refused arguments taken|pauses | epoch. Only records that were not carried out are named
Invariants: I3, I9, I10
]]

local refusal = open_call() or check_spends()
if refusal then
  return refusal
end
local answer = decide_spends()

write_spends()
return close_call(answer)
