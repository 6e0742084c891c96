--[[ attach: a mirror begins to copy a queue's outbox into its audit database, or ends that (`mode` on or off).

Before that, the outbox is a ring of recent events. If the queue began empty in this epoch and the ring still has all
its events, the log begins with them. Otherwise a new epoch begins, and the mirror asks for a baseline of the jobs that
are alive.

`known` is an epoch that SQL has. A queue that is in an earlier epoch (Redis forgot data, and its clock is behind, or
the same numbers were given again) begins an epoch greater than `known`, since an event cannot be mirrored if SQL has
passed its number. `stamp` is the mark by which SQL knows this queue of this Redis. A queue without a mark gets it. A
queue with another mark is that of another Redis, and the call is refused. If `stamp` is empty, nothing is compared.

Sending the call twice is harmless, so it takes no call slot.

Flags: allow-oom
Keys: outbox
Meta: epoch replid audit audit_id stamp baseline whole_epoch
Later: trimmed
Args: by audit_id stamp mode known:int
Uses: clock(clock_ms) meta(facts set_fact read_facts write_facts) epoch(same_history) emit(emit_queue quoted)
    next_epoch(next_epoch) wake(push_token) gate_opens(note_gate wake_if_gate_opens)
Returns: ok on|baseline|off | refused elsewhere AUDIT_ID | refused stamp STAMP | refused arguments mode | epoch.
    BASELINE asks for baseline calls
Invariants: I5, I7
]]

if mode ~= 'on' and mode ~= 'off' then
  return {'refused', 'arguments', 'mode'}
end
read_facts()
if not same_history(facts) then
  return {'epoch'}
end
if facts.audit == 'on' and facts.audit_id ~= audit_id then
  return {'refused', 'elsewhere', facts.audit_id}
elseif stamp ~= '' and facts.stamp and facts.stamp ~= stamp then
  return {'refused', 'stamp', facts.stamp}
end
note_gate()
local now = clock_ms()
local answer = mode
if stamp ~= '' and not facts.stamp then
  set_fact('stamp', stamp)
end
if mode == 'off' then
  if facts.audit == 'on' then
    emit_queue('policy_changed', now, by, '["audit","on","off"]')
    set_fact('audit', 'off')
    set_fact('baseline', 'none')
    set_fact('backlog_jobs', 0)
    set_fact('backlog_bytes', 0)
  end
elseif facts.audit ~= 'on' or tonumber(facts.epoch) < known then
  local behind = tonumber(facts.epoch) < known
  local first = redis.call('XRANGE', outbox, '-', '+', 'COUNT', 1)[1][1]
  if facts.audit ~= 'on' then
    set_fact('audit', 'on')
    set_fact('audit_id', audit_id)
    set_fact('trimmed', '0-0')
  end
  if not behind and facts.whole_epoch == facts.epoch and first == facts.epoch .. '-0' then
    set_fact('baseline', 'done')
  else
    local old = facts.epoch
    local last = redis.call('XREVRANGE', outbox, '+', '-', 'COUNT', 1)[1][1]
    set_fact('epoch', string.format('%.0f', next_epoch(now, math.max(tonumber(old), known), facts.replid)))
    set_fact('baseline', 'pending')
    emit_queue('epoch_started', now, by, '["' .. (behind and 'behind' or 'attached') .. '",' .. old .. ',' .. quoted(facts.replid) .. ',' ..
      quoted(facts.replid) .. ',' .. quoted(last) .. ']')
  end
end
if facts.audit == 'on' and facts.baseline == 'pending' then
  answer = 'baseline'
end
wake_if_gate_opens()
write_facts()
push_token()
return {'ok', answer}
