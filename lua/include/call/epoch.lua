--[[ epoch: which history of Redis this is.

Keys: outbox
Meta: epoch replid
Uses: replid(server_replid)
]]

--- True if the queue's memory and log are the ones that the queue's facts speak of. The outbox is never empty: the mirror
--- leaves its last entry, so an empty one was lost.
local function same_history(known)
  return known.epoch and known.replid == server_replid() and redis.call('XLEN', outbox) > 0
end
