--[[ epoch: checks whether Redis' history is the one that the queue remembers.

Keys: outbox
Meta: epoch replid
Uses: replid(server_replid) meta(facts recall_facts read_facts remember_facts)
]]

--- Return whether the queue's data and log belong to the history in the queue's facts. The outbox is never empty, since
--- the mirror leaves its last entry; so an empty outbox was lost.
local function same_history(known)
  return known.epoch and known.replid == server_replid() and redis.call('XLEN', outbox) > 0
end

--- Read the queue's facts, or recall them. Returns false if they are of another history.
---
--- Recalled facts were of the same history within the last second, and `replid` was the same then: otherwise `v` would
--- differ. This process has remembered them since its library was loaded, so no data was loaded from a file or another
--- server since then: that would have loaded the library again. The only other case is a server that was a replica
--- meanwhile and lost nothing.
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
