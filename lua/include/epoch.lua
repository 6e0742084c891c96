--[[ epoch: which history of Redis this is.

Keys: outbox
]]

--- The server's own name for its history: it changes when a replica is promoted or data is lost.
local function server_replid()
  local info = redis.call('INFO', 'replication')
  local _, at = info:find('master_replid:', 1, true)
  return info:sub(at + 1, at + 40)
end

--- True if the queue's memory and log are the ones that `facts` speaks of. The outbox is never empty:
--- the mirror leaves its last entry, so an empty one was lost.
local function same_history(facts)
  return facts.epoch and facts.replid == server_replid() and redis.call('XLEN', outbox) > 0
end
