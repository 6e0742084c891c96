--[[ emit: the one place that appends events. They are the first writes of a call that has any. One read may still come just
before the first of them: that of the backlog's counters, if the call has not asked for them so far.

Keys: outbox
Meta: epoch audit
Later: backlog_jobs backlog_bytes
Uses: meta(facts fact set_fact)
]]

local function append(fields, happened, size)
  local bound = {}
  if facts.audit == 'on' then
    set_fact('backlog_jobs', fact('backlog_jobs') + happened)
    set_fact('backlog_bytes', fact('backlog_bytes') + size)
  else
    bound = {'MAXLEN', '~', OUTBOX_RING}
  end
  bound[#bound + 1] = facts.epoch .. '-*'
  for i = 1, #fields do
    bound[#bound + 1] = fields[i]
  end
  return redis.call('XADD', outbox, unpack(bound))
end

--- Append what happened to some jobs: `records` holds one JSON array per job, and is used up. Returns the entry's id, or
--- nil if there are none. Numbers in JSON are written by Lua's own %.14g: exact for milliseconds and counters.
local function emit(event, at, by, records, why)
  local size = records and #records or 0
  if size == 0 then
    return nil
  end
  -- Lua looks at each byte of each text that is made, so the brackets go where the texts are short.
  records[1] = '[' .. records[1]
  records[size] = records[size] .. ']'
  local body = table.concat(records, ',')
  local fields = {'type', event, 'at', at, 'by', by, 'jobs', body}
  if why and why ~= '' then
    fields[9], fields[10] = 'why', why
  end
  return append(fields, size, #event + #body + #(why or ''))
end

--- Append what happened to the queue itself: `data` is one JSON array.
local function emit_queue(event, at, by, data, why)
  local fields = {'type', event, 'at', at, 'by', by, 'data', data}
  if why and why ~= '' then
    fields[9], fields[10] = 'why', why
  end
  return append(fields, 1, #event + #data + #(why or ''))
end

--- A JSON string of a name, or null. Names need no escaping: see keys.NAME_PATTERN.
local function quoted(name)
  return name and '"' .. name .. '"' or 'null'
end
