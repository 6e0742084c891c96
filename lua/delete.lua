--[[ delete: an operator removes a queue that has no jobs and no claims.

The first call appends `queue_deleted`. If no mirror is attached, it also removes all keys at once. Otherwise the caller
sends the call again until this event is the last one that the mirror has; then the call removes the keys. A queue that
was used meanwhile gets another such event. Sending the call twice is harmless, so it takes no call slot.

Flags: allow-oom
Keys: every
Meta: layout audit trimmed
Args: by why
Uses: clock(clock_ms) meta(facts read_facts write_facts) epoch(same_history) emit(emit_queue)
Returns: ok deleted|waits|absent | ok alive JOBS CLAIMS | epoch. WAITS: the mirror does not have the event yet
Invariants: I1, I7
]]

read_facts()
local jobs_alive = math.max(redis.call('HLEN', jobs), redis.call('HLEN', state))
local claims = redis.call('ZCARD', leases)
if not facts.layout and jobs_alive == 0 and redis.call('XLEN', outbox) == 0 then
  return {'ok', 'absent'}
end
if not same_history(facts) then
  return {'epoch'}
elseif facts.layout ~= LAYOUT then
  return {'refused', 'layout', facts.layout}
elseif jobs_alive > 0 or claims > 0 then
  return {'ok', 'alive', jobs_alive, claims}
end

local now = clock_ms()
local last = redis.call('XREVRANGE', outbox, '+', '-', 'COUNT', 1)[1]
local is_told = last[2][1] == 'type' and last[2][2] == 'queue_deleted'
if is_told and facts.audit == 'on' then
  if facts.trimmed ~= last[1] then
    return {'ok', 'waits'}
  end
elseif facts.audit == 'on' then
  emit_queue('queue_deleted', now, by, '[]', why)
  write_facts()
  return {'ok', 'waits'}
else
  emit_queue('queue_deleted', now, by, '[]', why)
end
redis.call('UNLINK', unpack(every))
return {'ok', 'deleted'}
