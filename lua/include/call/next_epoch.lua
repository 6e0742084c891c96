--[[ next_epoch: the number of an epoch that begins. No other history has it.

It is the clock, which does not show the same moment twice. Where the clock is behind what was used already, its next number
would be the same each time the same snapshot is loaded, and so would the fences be; so something is added that differs: the
name of the server's history, which is new after each load, and the moment.
]]

local SPREAD = 2 ^ 24   -- ms: some four and a half hours

--- The number at `now`, greater than `used`. `replid` is the server's name for its history.
local function next_epoch(now, used, replid)
  if now > used then
    return now
  end
  local name = tonumber(replid:sub(1, 6), 16) or 0
  return used + 1 + (name + now) % SPREAD
end
