--[[ room: the queue's own cap. It is a gate, counted on leases, so what waits behind it waits in no lane.

Keys: caps leases
]]

--- The queue's cap; nil if it has none.
local function queue_cap()
  local stored = redis.call('HGET', caps, 'queue')
  return stored and tonumber(stored:match('^%d+')) or nil
end

--- True if the queue is full and ending `ended` claims opens it: then somebody has to be woken, since what waits was
--- enqueued long ago.
local function frees_queue(ended)
  local held, cap = redis.call('ZCARD', leases), queue_cap()
  return cap ~= nil and held >= cap and held - ended < cap
end
