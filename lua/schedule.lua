--[[ schedule: an operator, or the code of a worker, declares or changes schedules. A change holds at once for every worker.

WHAT is put (a rule and a job), pause, resume, remove, seen (code declares what is stored under this version), release (a
live rule is given back to code: `undeclared` if no code declares the schedule), or restore (a put of a schedule that Redis
lost: VERSION is its last one by the log, and nothing may be stored). A record's VERSION is the one that the change was
made from (0: nothing was stored, -1: whatever is). NEXT_MS is the first
instant from now on and DUE_MS when that is due, by the caller's rule: for put, restore and resume. RULE is JSON that Lua does not
read; JOB is a job as `schedules` has it (see schedules/schedule_entries).

SOURCE is live, or code: code never replaces a rule that was set live, and brings back neither what it declared before nor
what an operator removed. An instant that has passed, or that the log has already, is not taken: the answer is `late`, and
the caller computes the next one after that.

Args: slot number:int by why source spec_max:int what
Each: name version:int next_ms:int due_ms:int rule job
Uses: call(open_call close_call) declaring(check_schedules decide_schedules write_schedules)
Returns: ok {NAME changed|same|kept|conflict|late|gone|undeclared VERSION NEXT}… | refused arguments schedule|what | epoch. VERSION
    is the one that is stored now, 0 if none is; NEXT is its next instant, or, if it is late, what NEXT must lie after
Invariants: I5, I15
]]

local refusal = open_call()
if refusal then
  return refusal
elseif what ~= 'put' and what ~= 'pause' and what ~= 'resume' and what ~= 'remove' and what ~= 'seen' and
    what ~= 'release' and what ~= 'restore' then
  return {'refused', 'arguments', 'what'}
end
refusal = check_schedules()
if refusal then
  return refusal
end
local answer = decide_schedules()

write_schedules()
return close_call(answer)
