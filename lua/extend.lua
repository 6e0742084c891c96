--[[ extend: a worker reports that it is alive, and extends its leases. The answer names the claims that the worker has
lost, and the jobs that must be cancelled. Sending the call twice is harmless, so it takes no call slot. It has no
event.

Flags: allow-oom
Keys: state leases
Meta: epoch lease_ms
Args: worker
Each: id fence
Unread: leases
Uses: clock(clock_ms) meta(fact write_facts) epoch(know_facts) state(read_line is_claimed)
    batch(call_many read_many) activity(note_activity)
Returns: ok NOW {ID lost|cancelling}… | epoch
Invariants: I9
]]

local now = clock_ms()
if not know_facts(now) then
  return {'epoch'}
end
check_keys()
local ids = {}
for i = 1, each_count do
  ids[i] = each(i)
end
local lines = read_many(state, ids)
local reply = {'ok', now}
local deadlines = {}
for i = 1, each_count do
  local id, fence = each(i)
  local job = read_line(lines[i])
  if job and job.fence == fence and job.by == worker and is_claimed(job) then
    deadlines[#deadlines + 1], deadlines[#deadlines + 2] = now + fact('lease_ms'), id
    if job.state == 'cancelling' then
      reply[#reply + 1], reply[#reply + 2] = id, 'cancelling'
    end
  else
    reply[#reply + 1], reply[#reply + 2] = id, 'lost'
  end
end

note_activity(now)
call_many('ZADD', leases, deadlines)
write_facts()
return reply
