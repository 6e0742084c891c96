--[[ probe: which of some commands the user may not send, as their places among them, from 1. None of them is carried out.

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
