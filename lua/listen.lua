--[[ listen: a client waits for ends of jobs, so scripts publish ends for the next minute (include/ends/publish_ends).
The client repeats the call while it waits. No call ends the publishing early.

Sending the call twice is harmless, so it takes no call slot. It has no event.

Flags: allow-oom
Meta: epoch awaited
Uses: clock(clock_ms) meta(fact set_fact write_facts) epoch(know_facts)
Returns: ok UNTIL | epoch. UNTIL (Unix ms) says how long ends are published
Invariants: I6 (it moves no job)
]]

local now = clock_ms()
if not know_facts(now) then
  return {'epoch'}
end
local told_until = fact('awaited')
-- Most calls find that another client has called shortly before: then the queue's facts do not change. A time that is
-- farther ahead than a call sets was set before the clock went back.
if told_until < now + LISTEN_MS / 2 or told_until > now + LISTEN_MS then
  told_until = now + LISTEN_MS
  set_fact('awaited', told_until)
  write_facts()
end
return {'ok', told_until}
