--[[ baseline: the log begins in the middle of a queue's life. Each call writes down some of the jobs that are
alive, as they stand at that moment; the last one marks the baseline complete, in the log too, so that a reader of only
the log knows from which entry on it is complete. Sending it twice is harmless.

CURSOR is 0 in the first call, and in each further one what the call before it answered: `jobs` is scanned here, about MOST
jobs in a call, so that no arguments travel. Fewer if their arguments are long: Redis can only read a value as a whole.

Flags: allow-oom
Keys: jobs state
Meta: epoch baseline
Args: by cursor most:int
Uses: clock(clock_ms) meta(facts set_fact read_facts write_facts) epoch(same_history) emit(emit emit_queue)
    state(read_line) batch(read_many) stored_lines(waiting_line) baseline_of(baseline_of)
Returns: ok CURSOR | epoch. CURSOR is 0 after the last jobs
Invariants: I5, I7
]]

local SCANNED = '10'          -- jobs that are read at a time
local BYTES_MAX = 1024 * 1024  -- of values, after which a call reads no more

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
  -- Redis may give more than it was asked for, and an event is to stay small.
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
