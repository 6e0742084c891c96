--[[ show: the holder of a claim shows how far its job has come, and the next chunks of the job's stream.

KIND is `says` or `chunk`. A worker numbers the reports of a claim, and its chunks, 1, 2, 3…; a report or a chunk whose
number is not above the last one is not written again. So sending the call twice is harmless, and it takes no call slot.
It has no event. A worker that had to leave out chunks leaves out their numbers.

START is the answer of the claim's earlier calls, 0 for the first one: if a failover has taken what Redis had, the
chunks go on behind it. The call is refused at maxmemory; the worker sends its chunks again later.

Keys: shown
Args: worker
Each: id fence claim start:int kind number:int text
Uses: clock(clock_ms) meta(write_facts) epoch(know_facts) showing(show_all write_all)
Returns: ok {ID START|gone|stale}… | with | epoch. START is the number before the claim's first chunk
Invariants: I6 (it moves no job), I9
]]

local now = clock_ms()
if not know_facts(now) then
  return {'epoch'}
elseif not shown then
  return {'with', 'shows'}
end
local reply = show_all(now)
write_all()
write_facts()
return reply
