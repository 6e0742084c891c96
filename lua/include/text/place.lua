--[[ place: writes places in line, and orders of lanes, as text of one width, so that they sort as text in the order
of the numbers. ]]

local PLACE_WIDTH = 16   -- number of digits of a place in line, or of an order

-- Members of `waiting` (`LANE|PLACE|ID`) and of `blocked` (`SCOPE|ORDER|LANE`) have a place or an order between two
-- bars. The positions of its beginning, of its end and of the rest are counted from the end of the text before it.
local PLACE_FROM = 2
local PLACE_UPTO = PLACE_FROM + PLACE_WIDTH - 1
local PLACE_BEHIND = PLACE_UPTO + 2

local PADDING = ('0'):rep(PLACE_WIDTH)

--- Return a whole number, or its text, with the digits of a place.
local function padded(value)
  local text = type(value) == 'string' and value or string.format('%.0f', value)
  return PADDING:sub(#text + 1) .. text
end
