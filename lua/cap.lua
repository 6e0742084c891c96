--[[ cap: an operator, or the code of a worker, changes how many jobs a scope admits. The change holds at once for every
worker. Lowering a limit ends no claim; if a limit rises, this call opens the lanes that may now be served.

VERSION is the version of the limit that the change is based on (0: nothing was stored, -1: any version). If another
version is stored by now, nothing is changed. SOURCE is live, or code for a limit that a task declares. Code never
replaces a live limit, and does not set a limit again that it declared before, so that an old worker that starts again
cannot write an old value back.

The limit `code` ends a live limit: the limit that code declared last is in force again. Until then, limits that code
declares are only noted. A key for which code declares nothing gets the limit of its family; if the family has none
either, the call is refused.

The first cap of a task counts jobs that run already: they get the scope and hold it. Jobs that wait get the scope when
a claim reaches them.

Flags: allow-oom
Args: slot number:int by why source
Each: scope limit version:int
Uses: call(open_call close_call) changing(check_caps decide_caps write_caps)
Returns: ok {SCOPE changed|same|kept|conflict VERSION LIMIT}… | refused arguments SCOPE | refused undeclared SCOPE | epoch.
    VERSION and LIMIT are those that are stored now; 0 and the family's limit for a key that has its family's limit again
Invariants: I3, I5, I10
]]

local refusal = open_call() or check_caps()
if refusal then
  return refusal
end
local answer
refusal, answer = decide_caps()
if refusal then
  return refusal
end

write_caps()
return close_call(answer)
