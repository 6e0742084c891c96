--[[ activity: postpones the end of leases after an outage.

If more than two thirds of a lease pass between two claims or extensions in a queue, all workers, or Redis, stood still:
then no worker could extend a lease, and no lease ends for the time of one more lease.

Meta: lease_ms last_activity no_reap_before
Uses: meta(fact set_fact)
]]

--- Note that a worker claims or extends. Call this before any lease ends.
local function note_activity(at)
  local last, lease = fact('last_activity'), fact('lease_ms')
  if at - last > lease * 2 / 3 then
    set_fact('no_reap_before', at + lease)
  end
  if at - last > lease / 10 then
    set_fact('last_activity', at)
  end
end
