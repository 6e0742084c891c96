--[[ activity: after an outage no lease ends too soon.

A gap of more than two thirds of a lease between two claims or extensions on the queue means that the fleet, or
Redis, stood still: then no worker could extend, and no lease ends for one more lease.

Meta: lease_ms last_activity no_reap_before
Uses: meta(fact set_fact)
]]

--- Note that a worker claims or extends, before any lease ends.
local function note_activity(at)
  local last, lease = fact('last_activity'), fact('lease_ms')
  if at - last > lease * 2 / 3 then
    set_fact('no_reap_before', at + lease)
  end
  if at - last > lease / 10 then
    set_fact('last_activity', at)
  end
end
