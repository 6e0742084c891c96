--[[ trim: removes the entries of the outbox that the mirror has committed. The last of them stays, as the anchor of the
mirror's next read. If Redis has lost the anchor, nothing is trimmed, since the remaining entries show the mirror which
events were lost. Sending the call twice is harmless.

Flags: allow-oom
Keys: outbox
Meta: epoch audit audit_id trimmed backlog_jobs backlog_bytes
Args: audit_id upto jobs:int size:int
Uses: meta(facts fact set_fact read_facts write_facts) epoch(same_history) wake(push_token)
    gate_opens(note_gate wake_if_gate_opens)
Returns: ok trimmed|already|absent | refused elsewhere AUDIT_ID | refused off | epoch
Invariants: I7 (only the audit database that the queue is attached to may trim)
]]

--- Return whether outbox id `a` comes after `b`.
local function after(a, b)
  local a_epoch, a_n = a:match('^(%d+)-(%d+)$')
  local b_epoch, b_n = b:match('^(%d+)-(%d+)$')
  a_epoch, b_epoch = tonumber(a_epoch), tonumber(b_epoch)
  return a_epoch > b_epoch or a_epoch == b_epoch and tonumber(a_n) > tonumber(b_n)
end

read_facts()
if not same_history(facts) then
  return {'epoch'}
elseif facts.audit ~= 'on' then
  return {'refused', 'off'}
elseif facts.audit_id ~= audit_id then
  return {'refused', 'elsewhere', facts.audit_id}
elseif not after(upto, facts.trimmed or '0-0') then
  return {'ok', 'already'}
end
-- A missing entry cannot be the anchor; and if the outbox became empty, it would count as lost.
if #redis.call('XRANGE', outbox, upto, upto) == 0 then
  return {'ok', 'absent'}
end
local all = redis.call('XREVRANGE', outbox, '+', '-', 'COUNT', 1)[1][1] == upto
note_gate()

redis.call('XTRIM', outbox, 'MINID', upto)
set_fact('trimmed', upto)
if all then
  -- The mirror has all events, or the outbox has none after the anchor. So the backlog becomes 0: it may still count
  -- entries that came back with an old RDB, that the mirror could not number, or that another client removed.
  jobs, size = fact('backlog_jobs'), fact('backlog_bytes')
end
set_fact('backlog_jobs', math.max(0, fact('backlog_jobs') - jobs))
set_fact('backlog_bytes', math.max(0, fact('backlog_bytes') - size))
wake_if_gate_opens()
write_facts()
push_token()
return {'ok', 'trimmed'}
