--[[ emit: appends events; no other file does. The events of a call are its first writes. One read may come directly
before the first event: that of the backlog's counters, if the call has not read them before.

An outbox is never empty, so a missing outbox was lost. Then nothing is written, and the error EPOCH has the same
meaning as the reply `epoch`: the client must repeat the handshake. Only a new epoch creates an outbox.

Keys: outbox
Meta: epoch audit
Later: backlog_jobs backlog_bytes
Kept: NO_REASON
Uses: meta(facts fact set_fact notes_of_queue)
]]

local NO_REASON = {}
local TRIM_EVERY = 20   -- number of appends to the ring of a queue without a mirror after which a function trims it

--- Return whether this append also trims the ring. A function counts the appends to each queue's ring; a script without
--- memory trims at each append.
local function is_to_trim()
  local notes = notes_of_queue()
  if not notes then
    return true
  end
  local appended = notes.appended or 0
  notes.appended = (appended + 1) % TRIM_EVERY
  return appended == 0
end

--- Append an entry. `happened` is the number of jobs or changes that it is about. `name` is the field that has the
--- `body`.
local function append(event, at, actor, name, body, happened, cause)
  local id = facts.epoch .. '-*'
  local reason = NO_REASON
  if cause and cause ~= '' then
    reason = {'why', cause}
  end
  if facts.audit == 'on' then
    set_fact('backlog_jobs', fact('backlog_jobs') + happened)
    set_fact('backlog_bytes', fact('backlog_bytes') + #event + #body + #(cause or ''))
  end
  local entry
  if event == 'epoch_started' then
    entry = redis.call('XADD', outbox, id, 'type', event, 'at', at, 'by', actor, name, body)
  elseif facts.audit == 'on' then
    entry = redis.call('XADD', outbox, 'NOMKSTREAM', id, 'type', event, 'at', at, 'by', actor, name, body, unpack(reason))
  elseif not is_to_trim() then
    entry = redis.call('XADD', outbox, 'NOMKSTREAM', id, 'type', event, 'at', at, 'by', actor, name, body, unpack(reason))
  else
    entry = redis.call('XADD', outbox, 'NOMKSTREAM', 'MAXLEN', '~', OUTBOX_RING, id, 'type', event, 'at', at, 'by', actor, name, body,
      unpack(reason))
  end
  if not entry then
    error({err = 'EPOCH the outbox is lost'})
  end
  return entry
end

--- Append an event about jobs. `records` has one JSON array per job, and is consumed. Returns the entry's id; nil if
--- there are no records. Lua writes numbers in JSON with %.14g, which is exact for milliseconds and counters.
local function emit(event, at, actor, records, cause)
  local size = records and #records or 0
  if size == 0 then
    return nil
  end
  if size == 1 then
    return append(event, at, actor, 'jobs', '[' .. records[1] .. ']', 1, cause)
  end
  -- Lua hashes each byte of a text that it makes, so the brackets are added to the short texts.
  records[1] = '[' .. records[1]
  records[size] = records[size] .. ']'
  return append(event, at, actor, 'jobs', table.concat(records, ','), size, cause)
end

--- Append an event about the queue itself. `data` is one JSON array.
local function emit_queue(event, at, actor, data, cause)
  return append(event, at, actor, 'data', data, 1, cause)
end

--- Return a name as a JSON string, or null. Names need no escaping: see keys.NAME_PATTERN.
local function quoted(name)
  return name and '"' .. name .. '"' or 'null'
end
