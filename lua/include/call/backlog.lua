--[[ backlog: refuses new jobs while too many events of the queue wait for the mirror.

Meta: audit
Later: backlog_jobs backlog_bytes backlog_max_jobs backlog_max_bytes
Uses: meta(facts fact)
]]

--- Return the reply that refuses the call; nil while there is room.
local function refuse_backlog()
  if facts.audit ~= 'on' then
    return nil
  end
  local waits, bound = fact('backlog_jobs'), fact('backlog_max_jobs')
  if waits >= bound or fact('backlog_bytes') >= fact('backlog_max_bytes') then
    return {'refused', 'audit_backlog', waits, bound}
  end
  return nil
end
