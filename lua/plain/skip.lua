--[[ skip: removes the entries at the head of a ready list whose jobs are gone, up to the first entry with a job, and at
most about `most`. Claims skip such entries, too: after a cancel of very many jobs, these calls leave them less to skip.

Values are read only of pages whose last job is gone, since the values of jobs that are there may be long.

Flags: allow-oom
Keys: list jobs meta
Args: most
Given: PAGE_MAX
Returns: the number of removed entries
]]

local length, gone, step = redis.call('LLEN', list), 0, math.min(64, PAGE_MAX)
while step >= 1 and gone < length and gone < tonumber(most) do
  step = math.min(step, length - gone)
  local last = gone + step - 1
  if redis.call('HEXISTS', jobs, redis.call('LINDEX', list, last)) == 1 then
    step = math.floor(step / 2)
  else
    local values = redis.call('HMGET', jobs, unpack(redis.call('LRANGE', list, gone, last)))
    local run = 0
    while run < step and not values[run + 1] do
      run = run + 1
    end
    gone = gone + run
    step = run == step and math.min(2 * step, PAGE_MAX) or 0
  end
end
if gone > 0 then
  local counted = tonumber(redis.call('HGET', meta, 'tombstones')) or 0
  redis.call('LTRIM', list, gone, -1)
  redis.call('HSET', meta, 'tombstones', math.max(0, counted - gone))
end
return gone
