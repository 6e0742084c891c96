--[[ schedule: an operator, or the code of a worker, declares or changes schedules. A change holds at once for every
worker.

WHAT is put (store a rule and a job), pause, resume, remove, seen (code declares what is stored under this version),
release (give a live rule back to code; the outcome is `undeclared` if no code declares the schedule), or restore (put a
schedule that Redis lost; VERSION is its last one by the log, and no schedule of the name may be stored). For the
others, VERSION is the version that the change is based on (0: nothing was stored, -1: any). For put, restore and
resume, NEXT_MS is the first instant after now by the caller's rule, and DUE_MS the time at which it is due. RULE is
JSON that Lua does not read; JOB is a job as `schedules` has it (see schedules/schedule_entries).

SOURCE is live, or code. Code never replaces a rule that was set live, and brings back neither a rule that it declared
before nor a schedule that an operator removed. An instant is not accepted if it has passed, or if the log has it: the
outcome is `late`, and the caller computes the next instant after NEXT.

Args: slot number:int by why source spec_max:int what
Each: name version:int next_ms:int due_ms:int rule job
Uses: call(open_call close_call) declaring(check_schedules decide_schedules write_schedules)
Returns: ok {NAME changed|same|kept|conflict|late|gone|undeclared VERSION NEXT}… | refused arguments schedule|what |
    epoch. VERSION is the version that is stored now, 0 if none is; NEXT is the schedule's next instant or, for late,
    the time after which the new instant must lie
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
