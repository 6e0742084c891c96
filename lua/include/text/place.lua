--[[ place: places in line, and orders of lanes, as text of one width: they sort as text as they do as numbers. ]]

local PLACE_WIDTH = 16   -- digits of a place in line, or of an order

-- Members of `waiting` (`LANE|PLACE|ID`) and of `blocked` (`SCOPE|ORDER|LANE`) have one between two bars. Where it begins and
-- ends there, and where the rest begins, is counted from the end of the text before it.
local PLACE_FROM = 2
local PLACE_UPTO = PLACE_FROM + PLACE_WIDTH - 1
local PLACE_BEHIND = PLACE_UPTO + 2

local PADDING = ('0'):rep(PLACE_WIDTH)

--- A whole number, or its text, in the digits of a place.
local function padded(value)
  local text = type(value) == 'string' and value or string.format('%.0f', value)
  return PADDING:sub(#text + 1) .. text
end
