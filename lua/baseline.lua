--[[ baseline: the log begins in the middle of a queue's life. Each call writes the present state of some of the jobs
that are alive. The last call marks the baseline as complete, also in the log, so that a reader of the log alone knows
from which entry on it is complete. Sending the call twice is harmless.

CURSOR is 0 in the first call, and the answer of the previous call in each later one. The script scans `jobs` itself, so
that the calls carry no jobs: about MOST jobs in a call, or fewer if their arguments are long, since Redis can only read
a value as a whole.

Flags: allow-oom
Keys: jobs state
Meta: epoch baseline
Args: by cursor most:int
Uses: clock(clock_ms) meta(facts set_fact read_facts write_facts) epoch(same_history) emit(emit emit_queue)
    state(read_line) batch(read_many) stored_lines(waiting_line) baseline_of(baseline_of)
Returns: ok CURSOR | epoch. CURSOR is 0 after the last jobs
Invariants: I5, I7
]]

local SCANNED = '10'          -- number of jobs that are read at a time
local BYTES_MAX = 1024 * 1024  -- bytes of values after which a call reads no more

read_facts()
if not same_history(facts) then
  return {'epoch'}
end
local ids, values, bytes = {}, {}, 0
repeat
  local page = redis.call('HSCAN', jobs, cursor, 'COUNT', SCANNED)
  cursor = page[1]
  for i = 1, #page[2], 2 do
    ids[#ids + 1], values[#values + 1] = page[2][i], page[2][i + 1]
    bytes = bytes + #page[2][i + 1]
  end
until cursor == '0' or #ids >= most or bytes >= BYTES_MAX
local lines = read_many(state, ids)
local parts, part = {}, {}
for i = 1, #ids do
  local line = lines[i] or waiting_line(values[i])
  if line then
    part[#part + 1] = baseline_of(ids[i], read_line(line))
  end
  -- Redis may return more jobs than it was asked for, and an event must stay small.
  if #part == most or i == #ids then
    parts[#parts + 1], part = part, {}
  end
end

local now = clock_ms()
for i = 1, #parts do
  emit('baseline', now, by, parts[i])
end
if cursor == '0' then
  if facts.baseline == 'pending' then
    emit_queue('policy_changed', now, by, '["baseline","pending","done"]')
  end
  set_fact('baseline', 'done')
end
write_facts()
return {'ok', cursor}
