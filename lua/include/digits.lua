--[[ digits: numbers as text. Redis writes a number that it is given with 17 digits, which costs more than most of what is
done with it; so what is said in every call is said as text.
]]

local DIGITS = {[0] = '0'}
local DIGITS_MAX = 10000

--- The digits of a whole number. Small ones come again and again.
local function digits(number)
  local text = DIGITS[number]
  if not text then
    text = string.format('%.0f', number)
    if number >= 0 and number < DIGITS_MAX then
      DIGITS[number] = text
    end
  end
  return text
end
