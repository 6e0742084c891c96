--[[ pause: an operator pauses scopes, and resumes them. No job of a paused scope begins; jobs that run already run on.
A scope must have a rate or a breaker, and only one key can be named, not a family.

MS says how long the pause lasts, from 1; 0 resumes the scope. If a pause that ends later is in force, it stays as it
is: `kept`. Debts of a rate outlast pause and resume. After a pause, the jobs of a rate begin one after the other, and a
breaker awaits a probe; a scope that an operator resumes is open at once.

Flags: allow-oom
Keys: state
Unread: state
Args: slot number:int by why
Each: scope ms:int
Uses: call(open_call close_call now) emit(emit_queue) digits(digits) costs(pause unpause) breakers(pause_breaker open_breaker)
    scopes(scope_of await_no_more) lane_opening(reevaluate) lane_write(check_lanes write_lanes)
Returns: ok {SCOPE paused|kept|resumed|open|unlimited UNTIL}… | refused arguments SCOPE | epoch. UNTIL is when the pause
    in force ends (Unix ms); 0: no pause is in force. unlimited: the scope has no rate and no breaker with a limit
Invariants: I3, I5, I10
]]

local MS_MAX = 9999999999999   -- for ever

local refusal = open_call()
if refusal then
  return refusal
end
check_keys()

for i = 1, each_count do
  local name, ms = each(i)
  if ms < 0 or not name:find('^[^=@]+@[^=]+=') then
    return {'refused', 'arguments', name}
  end
end

local answer, events = {}, {}
for i = 1, each_count do
  local name, ms = each(i)
  local scope = scope_of(name)
  local outcome
  if not scope.rate and not scope.breaker then
    outcome = 'unlimited'
  elseif ms == 0 and not scope.paused then
    outcome = 'open'
  elseif ms == 0 then
    (scope.breaker and open_breaker or unpause)(scope, now)
    await_no_more(scope)
    reevaluate(name)
    outcome = 'resumed'
  else
    local before, till = scope.paused, math.min(now + ms, MS_MAX)
    outcome = (scope.breaker and pause_breaker or pause)(scope, now, till) == till and before ~= till and 'paused' or 'kept'
    scope.paused_by = outcome == 'paused' and by or scope.paused_by
  end
  local till = scope.paused and digits(scope.paused) or '0'
  if outcome == 'paused' or outcome == 'resumed' then
    events[#events + 1] = '["' .. name .. '",' .. (till == '0' and 'null' or till) .. ']'
  end
  answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = name, outcome, till
end
check_lanes()

for i = 1, #events do
  emit_queue('pause_changed', now, by, events[i], why)
end
write_lanes()
return close_call(answer)
