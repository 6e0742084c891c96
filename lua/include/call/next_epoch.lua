--[[ next_epoch: computes the number of a new epoch, which no other history has.

The number is the clock, which never shows the same moment twice. But if the clock is behind the numbers that were used,
the next number would be the same each time the same snapshot is loaded, and so would the fences be. Then a number is
added that differs each time: it is made from the name of the server's history, which is new after each load, and from
the time.
]]

local SPREAD = 2 ^ 24   -- ms: about four and a half hours

--- Return the number of an epoch that begins at `now`; it is greater than `used`. `replid` is the server's name for its
--- history.
local function next_epoch(now, used, replid)
  if now > used then
    return now
  end
  local name = tonumber(replid:sub(1, 6), 16) or 0
  return used + 1 + (name + now) % SPREAD
end
