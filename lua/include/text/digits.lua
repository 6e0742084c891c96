--[[ digits: converts numbers to text. Redis converts a number that it is given with 17 digits, which costs more than
most other work on it. So numbers that every call sends are sent as text.

Kept: DIGITS THREE
]]

local DIGITS = {[0] = '0'}
local DIGITS_MAX = 10000

--- Return the digits of a whole number. Small numbers come again and again, so their digits are remembered.
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
local thousands, beginning   -- the thousands of the number that `digits_of_next` was last given, and their digits

local function reset()
  thousands, beginning = nil, nil
end

--- Return the digits of a whole number, for numbers in ascending order: all digits but the last three are mostly those
--- of the previous number.
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
