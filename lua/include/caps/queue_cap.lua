--[[ queue_cap: reads the queue's own cap. The cap counts leases, and stops claims of the whole queue: jobs that wait
for it wait in no lane.

Keys: caps leases
Uses: wake(wake_needed)
]]

--- Return the queue's cap; nil if it has none.
local function queue_cap()
  local stored = redis.call('HGET', caps, 'queue')
  return stored and tonumber(stored:match('^%d+')) or nil
end

--- Wake a worker if the queue was at its cap before `ended` claims ended: the jobs that wait were enqueued long ago, so
--- no other call wakes a worker for them.
local function wake_if_below_cap(ended)
  local held, cap = redis.call('ZCARD', leases), queue_cap()
  if cap ~= nil and held >= cap and held - ended < cap then
    wake_needed()
  end
end
