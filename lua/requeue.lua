--[[ requeue: somebody gives dead jobs another life: their failures and losses are forgotten, their claims are
counted on, and they join the tail of the line.

Transitions: dead -requeued-> ready
Keys: meta state ready waiting lanes open blocked holders caps rates fair scheduled dead outbox slots expiring wake
Later: sequence
Args: slot number:int by why
Each: id
Uses: call emit state ready lanes dead wake batch
Returns: ok {ID requeued|STATE|gone}… | epoch
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
local held = read_many(state, ids)
-- Only so that a key of another type is an error here, before the first write, and not after it.
redis.call('ZCARD', dead)
lengths()
local sleeping = wake_is_empty()

local seq = fact('sequence')
local events, revived, lines, answer, seen = {}, {}, {}, {}, {}
local joining = {[0] = {}, {}, {}, {}}
local claimable = false
for i, id in ipairs(ids) do
  local job = read_line(held[i])
  local outcome = job and job.state or 'gone'
  if seen[id] then
    outcome = 'ready'
  elseif outcome == 'dead' then
    seq = seq + 1
    outcome, seen[id] = 'requeued', true
    job.state, job.seq, job.since = 'ready', seq, now
    job.failed, job.lost, job.unknown, job.reason = nil, nil, nil, nil
    events[#events + 1] = '["' .. id .. '",' .. seq .. ']'
    revived[#revived + 1] = id
    lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
    if job.lane then
      put(lane_of(job.lane), seq, id)
    else
      local list = joining[rank(job)]
      list[#list + 1] = id
      claimable = true
    end
  end
  answer[#answer + 1], answer[#answer + 2] = id, outcome
end

check_lanes()

emit('requeued', now, by, events, why)
call_many('HSET', state, lines)
exhume(revived)
for priority = 0, 3 do
  call_many('RPUSH', ready[priority], joining[priority])
end
write_lanes()
if #revived > 0 then
  set_fact('sequence', seq)
end
if sleeping and (claimable or opened) then
  push_token()
end
return close_call(answer)
