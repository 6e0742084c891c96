--[[ prune: somebody removes dead jobs before their retention ends.

Transitions: dead -pruned-> none
Flags: allow-oom
Keys: meta state jobs dead outbox slots expiring
Args: slot number:int by why
Each: id
Uses: call emit state dead batch
Returns: ok {ID pruned|STATE|gone}… | epoch
Invariants: I6
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
redis.call('HLEN', jobs)
redis.call('ZCARD', dead)

local events, gone, answer, seen = {}, {}, {}, {}
for i, id in ipairs(ids) do
  local job = not seen[id] and read_line(held[i])
  local outcome = job and job.state or 'gone'
  if outcome == 'dead' then
    outcome, seen[id] = 'pruned', true
    events[#events + 1] = '["' .. id .. '"]'
    gone[#gone + 1] = id
  end
  answer[#answer + 1], answer[#answer + 2] = id, outcome
end

emit('pruned', now, by, events, why)
call_many('HDEL', state, gone)
call_many('HDEL', jobs, gone)
exhume(gone)
return close_call(answer)
