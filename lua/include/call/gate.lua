--[[ gate: says whether a queue's gate is shut. A queue with a shut gate gives out no jobs, however many are ready:
while it is paused, or while its backlog is at least twice its bound. A call that opens the gate wakes a worker: the
jobs that wait were enqueued long ago, so no other call wakes a worker for them.

Meta: paused audit
Later: backlog_jobs backlog_bytes backlog_max_jobs backlog_max_bytes
Uses: meta(facts fact)
]]

--- Return whether the audit log is on, and its backlog is at least twice its bound.
local function is_log_shut()
  return facts.audit == 'on' and (
    fact('backlog_jobs') >= 2 * fact('backlog_max_jobs') or
    fact('backlog_bytes') >= 2 * fact('backlog_max_bytes'))
end

local function gate_is_shut()
  return fact('paused') == 1 or is_log_shut()
end
