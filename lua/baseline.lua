--[[ baseline: the log begins in the middle of a queue's life. Each call writes down some of the jobs that are
alive, as they stand at that moment; the last one marks the baseline complete, in the log too, so that a reader of only
the log knows from where on it tells everything. Sending it twice is harmless.

Flags: allow-oom
Keys: meta state outbox
Meta: epoch baseline
Args: by last:int
Each: id
Uses: clock(clock_ms) meta(facts set_fact read_facts write_facts) epoch(same_history) emit(emit emit_queue)
    state(read_line) batch(read_many) baseline_of(baseline_of)
Returns: ok | epoch
Invariants: I5, I7
]]

read_facts()
if not same_history(facts) then
  return {'epoch'}
end
local ids = {}
for i = 1, each_count do
  ids[i] = each(i)
end
local lines = read_many(state, ids)
local jobs = {}
for i, id in ipairs(ids) do
  if lines[i] then
    jobs[#jobs + 1] = baseline_of(id, read_line(lines[i]))
  end
end

local now = clock_ms()
emit('baseline', now, by, jobs)
if last == 1 then
  if facts.baseline == 'pending' then
    emit_queue('policy_changed', now, by, '["baseline","pending","done"]')
  end
  set_fact('baseline', 'done')
end
write_facts()
return {'ok'}
