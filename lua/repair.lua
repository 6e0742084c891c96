--[[ repair: carry out what the doctor derived from a snapshot: plain edits of single members. All edits of one finding
are made, or none if one of their members is no longer as it WAS in the snapshot: then the queue has moved on, and the
doctor looks again. So a queue is mended while it works. Sending it twice is harmless.

An edit names a member of KEY, the value that it WAS, and the VALUE that it gets; empty: none. The same value twice
only says what must not have moved. WAS `<` is any lower number. A score that begins with `+` counts from now on.
Some keys are edited in their own way. `line` is the state of a job (its line in `state`, else what `jobs` says of one that
only waits), `head` the first member of `waiting` in a lane; neither is written. `ready:N`: the
id goes to the head of the list, by its place in line, VALUE; an entry too many is harmless, since claim passes over it.
`outbox`: a baseline event of the job. `wake`: one token is left, whatever the edits are.

Flags: allow-oom
Keys: ready wake
Meta: epoch
Args: by
Each: finding:int key member was value
Unread: ready
Uses: clock(clock_ms) meta(read_facts write_facts facts) epoch(same_history) emit(emit) state(read_line) ready(return_ready)
    wake(wake_needed push_token) baseline_of(baseline_of) members(name_keys has_kept note_member write_members)
Returns: ok MENDED | epoch. MENDED is how many findings
Invariants: I8, I10
]]

read_facts()
if not same_history(facts) then
  return {'epoch'}
end
local now = clock_ms()
check_keys()
wake_needed()
name_keys()

local moved = {}          -- findings with a value that has moved
for i = 1, each_count do
  local finding, key, member, was, value = each(i)
  if not has_kept(key, member, was, value) then
    moved[finding] = true
  end
end

local events, listed, lines = {}, {[0] = {}, {}, {}, {}}, {}
local mended, known = 0, {}
for i = 1, each_count do
  local finding, key, member, was, value = each(i)
  if not moved[finding] then
    if not known[finding] then
      known[finding], mended = true, mended + 1
    end
    local list = listed[tonumber(key:match('^ready:(%d)$'))]
    if list then
      list[#list + 1] = {member, tonumber(value)}
    elseif key == 'outbox' then
      events[#events + 1] = baseline_of(member, read_line(lines[member]))
    elseif value ~= was then
      note_member(key, member, value, now)
    end
    if key == 'line' or key == 'state' then
      lines[member] = value ~= '' and value
    end
  end
end

emit('baseline', now, by, events)
write_members()
for list = 0, 3 do
  return_ready(list, listed[list])
end
redis.call('LTRIM', wake, 0, 0)
write_facts()
push_token()
return {'ok', mended}
