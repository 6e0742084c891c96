--[[ enqueue: a producer hands over jobs. All new ones are accepted together; an id that is live is a duplicate.

Transitions: none -enqueued-> ready, none -enqueued-> scheduled
Keys: meta state jobs ready scheduled outbox slots expiring wake
Meta: sequence backlog_max_jobs backlog_max_bytes
Args: slot number:int by
Each: id delay_ms:int priority:int head detail spec
Uses: call emit ready due wake batch
Returns: ok {DUPLICATE_ID}… | refused audit_backlog BACKLOG BOUND | refused arguments priority | epoch
Invariants: I1 (the outbox entry and the jobs are one write), I6
]]

local refusal = open_call()
if refusal then
  return refusal
end
if facts.audit == 'on' then
  local bound = fact('backlog_max_jobs')
  if fact('backlog_jobs') >= bound or fact('backlog_bytes') >= fact('backlog_max_bytes') then
    return {'refused', 'audit_backlog', fact('backlog_jobs'), bound}
  end
end

local ids, seen, answer = {}, {}, {}
for i = 1, each_count do
  local id, _, priority = each(i)
  if not ready[priority] then
    return {'refused', 'arguments', 'priority'}
  end
  ids[i] = id
end
local live = read_many(state, ids)
redis.call('HLEN', jobs)
lengths()
local next_due = earliest_due(0)
local sleeping = wake_is_empty()

local seq = fact('sequence')
local events, specs, lines, due = {}, {}, {}, {}
local joining = {[0] = {}, {}, {}, {}}
local earlier, claimable = false, false
for i = 1, each_count do
  local id, delay_ms, priority, head, detail, spec = each(i)
  if live[i] or seen[id] then
    answer[#answer + 1] = id
  else
    seen[id] = true
    specs[#specs + 1], specs[#specs + 2] = id, spec
    lines[#lines + 1] = id
    if delay_ms > 0 then
      local at = now + delay_ms
      lines[#lines + 1] = 'scheduled ' .. head .. ' due=' .. at .. ' since=' .. now
      due[#due + 1], due[#due + 2] = at, 'job|' .. id
      events[#events + 1] = '["' .. id .. '",null,' .. at .. ',' .. detail .. ']'
      earlier = earlier or not next_due or at < next_due
    else
      seq = seq + 1
      lines[#lines + 1] = 'ready ' .. head .. ' seq=' .. seq .. ' since=' .. now
      local list = joining[priority]
      list[#list + 1] = id
      events[#events + 1] = '["' .. id .. '",' .. seq .. ',null,' .. detail .. ']'
      claimable = true
    end
  end
end

emit('enqueued', now, by, events)
call_many('HSET', jobs, specs)
call_many('HSET', state, lines)
for priority = 0, 3 do
  call_many('RPUSH', ready[priority], joining[priority])
end
call_many('ZADD', scheduled, due)
if seq ~= fact('sequence') then
  set_fact('sequence', seq)
end
if sleeping and (claimable or earlier) then
  push_token()
end
return close_call(answer)
