--[[ clock: the server's time, read once per call. No worker's clock decides anything. ]]

--- Unix time in whole milliseconds.
local function clock_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
