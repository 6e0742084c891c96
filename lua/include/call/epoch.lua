--[[ epoch: which history of Redis this is.

Keys: outbox
Meta: epoch replid
Uses: replid(server_replid) meta(facts recall_facts read_facts remember_facts)
]]

--- True if the queue's memory and log are the ones that the queue's facts speak of. The outbox is never empty: the mirror
--- leaves its last entry, so an empty one was lost.
local function same_history(known)
  return known.epoch and known.replid == server_replid() and redis.call('XLEN', outbox) > 0
end

--- Begin with the queue's facts. False if its history is another one.
---
--- What is remembered was the same history within the last second, and `replid` is that of then, or `v` would be another. It
--- is remembered in this process since its library was loaded, so nothing was loaded from a file or from another server since:
--- either would have loaded the library again. What is left is a server that was a replica meanwhile and lost nothing.
local function know_facts(at)
  if recall_facts(at) then
    return true
  end
  read_facts()
  if not same_history(facts) then
    return false
  end
  remember_facts(at)
  return true
end
