--[[ digits: numbers as text. Redis writes a number that it is given with 17 digits, which costs more than most of what is
done with it; so what is said in every call is said as text.

Kept: DIGITS THREE
]]

local DIGITS = {[0] = '0'}
local DIGITS_MAX = 10000

--- The digits of a whole number. Small ones come again and again.
local function digits(value)
  local text = DIGITS[value]
  if not text then
    text = string.format('%.0f', value)
    if value >= 0 and value < DIGITS_MAX then
      DIGITS[value] = text
    end
  end
  return text
end

local THREE = {}          -- '000' to '999'
local thousands, beginning   -- the thousands that `digits_of_next` met last, and their digits

local function reset()
  thousands, beginning = nil, nil
end

--- The same for numbers that come one after the other: but for the last three, their digits are those of the one before.
local function digits_of_next(value)
  local last = value % 1000
  if value - last ~= thousands then
    thousands = value - last
    beginning = digits(thousands / 1000)
  end
  if thousands == 0 then
    return digits(value)
  end
  local three = THREE[last]
  if not three then
    three = string.format('%03d', last)
    THREE[last] = three
  end
  return beginning .. three
end
