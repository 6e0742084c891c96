--[[ cancel: somebody no longer wants jobs. One that waits is gone at once; one that runs is flagged, and its
worker learns of it when it next extends its leases.

Transitions: ready -cancelled-> none, scheduled -cancelled-> none, running -cancel_requested-> cancelling
Flags: allow-oom
Keys: meta state jobs waiting lanes open blocked holders caps rates fair scheduled outbox slots expiring wake
Args: slot number:int by why
Each: id
Uses: call emit state lanes leave wake batch
Returns: ok {ID cancelled|cancelling|dead|gone}… | epoch
Invariants: I6, I10
]]

local refusal = open_call()
if refusal then
  return refusal
end
local ids = {}
for i = 1, each_count do
  ids[i] = each(i)
end
local lines = read_many(state, ids)
-- Only so that a key of another type is an error here, before the first write, and not after it.
redis.call('HLEN', jobs)
redis.call('ZCARD', scheduled)

local cancelled, requested = {}, {}
local flagged, answer, seen = {}, {}, {}
for i, id in ipairs(ids) do
  local job = seen[id] or read_line(lines[i])
  local outcome
  if not job or job.state == 'gone' then
    outcome = 'gone'
  elseif job.state == 'ready' or job.state == 'scheduled' then
    outcome = 'cancelled'
    cancelled[#cancelled + 1] = '["' .. id .. '"]'
    leave(id, job)
    job.state = 'gone'
  elseif job.state == 'running' then
    outcome = 'cancelling'
    requested[#requested + 1] = '["' .. id .. '",' .. quoted(job.fence) .. ']'
    job.state, job.since = 'cancelling', now
    flagged[#flagged + 1], flagged[#flagged + 2] = id, write_line(job)
  else
    outcome = job.state
  end
  seen[id] = job
  answer[#answer + 1], answer[#answer + 2] = id, outcome
end

local wakes = opened and wake_is_empty()
check_lanes()

emit('cancelled', now, by, cancelled, why)
emit('cancel_requested', now, by, requested, why)
write_leaves()
call_many('HSET', state, flagged)
write_lanes()
if wakes then
  push_token()
end
return close_call(answer)
