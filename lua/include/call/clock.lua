--[[ clock: reads the server's time, once per call. No worker's clock decides anything. ]]

--- Return the Unix time in whole milliseconds, as a number and as text.
local function clock_ms()
  local time = redis.call('TIME')
  local text = time[1] .. ('00000' .. time[2]):sub(-6, -4)
  return tonumber(text), text
end
