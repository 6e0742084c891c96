--[[ emit: the one place that appends events. They are the first writes of a call that has any. One read may still come just
before the first of them: that of the backlog's counters, if the call has not asked for them so far.

An outbox is never empty, so one that is not there was lost; then nothing is written, and the error EPOCH is what the reply
`epoch` is: the client is to meet the queue again. Only a new epoch makes an outbox.

Keys: outbox
Meta: epoch audit
Later: backlog_jobs backlog_bytes
Kept: NO_REASON
Uses: meta(facts fact set_fact notes_of_queue)
]]

local NO_REASON = {}
local TRIM_EVERY = 20   -- appends to the ring of a queue that no mirror reads, until a function trims it

--- Whether this append is one that trims. A function counts those of each queue; where it remembers nothing, each trims.
local function is_to_trim()
  local notes = notes_of_queue()
  if not notes then
    return true
  end
  local appended = notes.appended or 0
  notes.appended = (appended + 1) % TRIM_EVERY
  return appended == 0
end

--- Append an entry about `happened` things; `name` is the field that has the `body`.
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

--- Append what happened to some jobs: `records` holds one JSON array per job, and is used up. Returns the entry's id, or
--- nil without any. Numbers in JSON are written by Lua's own %.14g: exact for milliseconds and counters.
local function emit(event, at, actor, records, cause)
  local size = records and #records or 0
  if size == 0 then
    return nil
  end
  if size == 1 then
    return append(event, at, actor, 'jobs', '[' .. records[1] .. ']', 1, cause)
  end
  -- Lua looks at each byte of each text that is made, so the brackets go where the texts are short.
  records[1] = '[' .. records[1]
  records[size] = records[size] .. ']'
  return append(event, at, actor, 'jobs', table.concat(records, ','), size, cause)
end

--- Append what happened to the queue itself: `data` is one JSON array.
local function emit_queue(event, at, actor, data, cause)
  return append(event, at, actor, 'data', data, 1, cause)
end

--- A JSON string of a name, or null. Names need no escaping: see keys.NAME_PATTERN.
local function quoted(name)
  return name and '"' .. name .. '"' or 'null'
end
