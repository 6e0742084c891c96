--[[ repair: carries out the edits of single members that the doctor derived from a snapshot. All edits of one finding
are made, or none if one of their members no longer has the value that it WAS in the snapshot: then the queue has
changed, and the doctor looks again. So a queue can be repaired while it works. Sending the call twice is harmless.

An edit names a member of KEY, the value that it WAS, and the VALUE that it gets; empty: no value. An edit with the same
value twice changes nothing, but ensures that the member has not changed. WAS `<` means any lower number. A score that
begins with `+` counts from now. Some keys are edited in their own way. `line` is the state line of a job (in `state`
or, for a job that only waits, in `jobs`), `head` the first member of `waiting` in a lane; neither is written.
`ready:N`: the id is put at the head of the list, by its place in line, VALUE; an extra entry is harmless, since a claim
skips it. `outbox`: a baseline event of the job is appended. `wake`: one token is left, whatever the edits are.

Flags: allow-oom
Keys: ready wake
Meta: epoch
Args: by
Each: finding:int key member was value
Unread: ready
Uses: clock(clock_ms) meta(read_facts write_facts facts) epoch(same_history) emit(emit) state(read_line) ready(return_ready)
    wake(wake_needed push_token) baseline_of(baseline_of) members(name_keys has_kept note_member write_members)
Returns: ok MENDED | epoch. MENDED is the number of repaired findings
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

local moved = {}          -- findings with a member that has changed
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
