--[[ cap: an operator, or the code of a worker, changes how many a scope takes. It holds at once for every worker; lowering
it ends no claim, and what a rise lets in is opened here.

A record's version is the one that the change was made from (0: nothing was stored, -1: whatever is); if it is another by
now nothing is changed. SOURCE is live, or code for what a task declares: code never replaces a live limit, nor brings
back one that it had declared before, so that an old worker that starts again cannot write an old value back.

The limit `code` ends a live one: what code declared last holds again. What code declares until then is noted for that.
A key for which code declares nothing goes back to its family; where there is nothing to go back to, the call is refused.

A task's first cap counts what runs already: those jobs get the scope and hold it. What waits already takes it up when
claim meets it.

Flags: allow-oom
Args: slot number:int by why source
Each: scope limit version:int
Uses: call(open_call close_call) changing(check_caps decide_caps write_caps)
Returns: ok {SCOPE changed|same|kept|conflict VERSION LIMIT}… | refused arguments SCOPE | refused undeclared SCOPE | epoch.
    VERSION and LIMIT are those that are stored now; of a key that is back at its family, 0 and the family's
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
