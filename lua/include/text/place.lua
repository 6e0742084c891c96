--[[ place: places in line, and orders of lanes, as text of one width: they sort as text as they do as numbers. ]]

local PADDING = '0000000000000000'

--- 16 digits of a whole number, or of its text.
local function padded(value)
  local text = type(value) == 'string' and value or string.format('%.0f', value)
  return PADDING:sub(#text + 1) .. text
end
