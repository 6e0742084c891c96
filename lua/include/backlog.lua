--[[ backlog: no jobs join a queue while too many of its events wait to be mirrored.

Meta: audit backlog_jobs backlog_bytes backlog_max_jobs backlog_max_bytes
Uses: meta
]]

--- The reply that refuses the call, nil while there is room.
local function refuse_backlog()
  local waits, bound = fact('backlog_jobs'), fact('backlog_max_jobs')
  if facts.audit == 'on' and (waits >= bound or fact('backlog_bytes') >= fact('backlog_max_bytes')) then
    return {'refused', 'audit_backlog', waits, bound}
  end
  return nil
end
