--[[ due: reads when scheduled jobs are due.

Keys: scheduled
Uses: digits(digits)
]]

--- Return the time at which the first scheduled member after the first `skip` ones is due; nil without one.
local function earliest_due(skip)
  local first = redis.call('ZRANGE', scheduled, digits(skip), digits(skip), 'WITHSCORES')
  return tonumber(first[2])
end
