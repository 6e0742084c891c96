--[[ backlog: no jobs join a queue while too many of its events wait to be mirrored.

Meta: audit
Later: backlog_jobs backlog_bytes backlog_max_jobs backlog_max_bytes
Uses: meta(facts fact)
]]

--- The reply that refuses the call, nil while there is room.
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
