--[[ probe: returns the places, from 1, of the commands in a list that the user may not send. No command is carried out.

Args: commands
Returns: PLACE…
]]

local denied = {}
for i, command in ipairs(cjson.decode(commands)) do
  local is_known, may_send = pcall(redis.acl_check_cmd, unpack(command))
  if is_known and not may_send then
    denied[#denied + 1] = i
  end
end
return denied
