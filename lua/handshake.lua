--[[ handshake: a client begins to use a queue. The call creates the queue if it is missing, and starts a new epoch if
Redis' history is not the one that the queue remembers. Sending the call twice is harmless, so it takes no call slot.

The new epoch is greater than any that could have been used: greater than the previous one, the stream's last entry, the
caller's floor, and the clock, in case all of those were lost. No other history has the same epoch (see
include/call/next_epoch).

The same history under another name begins no epoch (see include/call/history_names).

Flags: allow-oom
Keys: jobs state caps outbox
Meta: layout epoch replid sequence no_reap_before paused audit audit_id caps_by_task caps_by_key
    lease_ms dead_retention_ms backlog_max_jobs backlog_max_bytes results_max results_max_bytes kept_max_bytes
Later: whole_epoch baseline
Args: by floor:int
Uses: clock(clock_ms) meta(facts fact set_fact read_facts write_facts) epoch(same_history) replid(server_replid)
    history_names(note_history_name is_history_name) next_epoch(next_epoch)
    emit(emit_queue quoted)
Returns: ok EPOCH NOW LEASE_MS PAUSED AUDIT AUDIT_ID STARTED | refused layout FOUND. STARTED is the reason of the
    epoch that this call started, or -
Invariants: I5
]]

read_facts()
if facts.layout and facts.layout ~= LAYOUT then
  return {'refused', 'layout', facts.layout}
end
local now = clock_ms()
local started = '-'
local replid, info = server_replid()
note_history_name(replid, info)
-- If the server is a promoted replica, this is the name of the history that it continued from its primary.
local went_on_from = info and info:match('master_replid2:(%x+)')
local old_epoch, old_replid = facts.epoch, facts.replid
if facts.epoch and facts.replid ~= replid and is_history_name(facts.replid) then
  set_fact('replid', replid)
end
if same_history(facts) then
  write_facts()
else
  local entry = redis.call('XLEN', outbox) > 0 and redis.call('XREVRANGE', outbox, '+', '-', 'COUNT', 1)[1]
  local last = entry and entry[1]
  if not facts.epoch then
    started = 'created'
  elseif not last then
    started = 'outbox_lost'
  else
    started = 'replid_changed'
  end
  local alive, capped = redis.call('HLEN', state) + redis.call('HLEN', jobs), redis.call('HLEN', caps)
  -- If `meta` is lost, the last place in line is lost as well. The clock is greater than any place that was given.
  local sequence = facts.sequence or (alive > 0 and now or 0)
  local epoch = next_epoch(
    now, math.max(tonumber(old_epoch) or 0, tonumber(last and last:match('^%d+')) or 0, floor - 1), replid)
  set_fact('layout', LAYOUT)
  set_fact('epoch', string.format('%.0f', epoch))
  set_fact('replid', replid)
  if not old_epoch and alive == 0 then
    set_fact('whole_epoch', facts.epoch)
  elseif started == 'outbox_lost' and facts.audit == 'on' then
    set_fact('baseline', 'pending')
    set_fact('backlog_jobs', 0)
    set_fact('backlog_bytes', 0)
  end
  set_fact('sequence', sequence)
  if not old_epoch and capped > 0 then
    -- Limits survive the loss of `meta`. Without these facts no script would look at the limits.
    set_fact('caps_by_task', 1)
    set_fact('caps_by_key', 1)
  end
  if not old_epoch and alive > 0 then
    -- Nor would a script run the parts that end with a job.
    for i = 1, #PART_FACTS do
      set_fact(PART_FACTS[i], 1)
    end
  end
  set_fact('no_reap_before', now + fact('lease_ms'))
  for name, default in pairs(SETTINGS) do
    if not facts[name] then
      set_fact(name, default)
    end
  end
  emit_queue('epoch_started', now, by, '["' .. started .. '",' .. (old_epoch and old_epoch:match('^%d+$') or 'null') .. ',' ..
    quoted(old_replid) .. ',' .. quoted(replid) .. ',' .. quoted(last) .. ',' ..
    (went_on_from and went_on_from == old_replid and 'true' or 'false') .. ']')
  write_facts()
end
return {'ok', facts.epoch, now, fact('lease_ms'), fact('paused'), facts.audit or 'off', facts.audit_id or '-', started}
