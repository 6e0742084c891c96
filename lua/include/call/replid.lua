--[[ replid: reads the server's name for its history. The name changes when a replica is promoted or data is lost. ]]

--- Return the name, and the whole reply to INFO replication.
local function server_replid()
  local info = redis.call('INFO', 'replication')
  local _, at = info:find('master_replid:', 1, true)
  return info:sub(at + 1, at + 40), info
end
