--[[ scopes: returns the first MOST scopes that have members in `blocked` or `holders`, from START on. One
read passes over all members of a scope.

Keys: index
Args: start most
Returns: SCOPE…
]]

local found = {}
for at = 1, tonumber(most) do
  local member = redis.call('ZRANGEBYLEX', index, start, '+', 'LIMIT', 0, 1)[1]
  if not member then
    break
  end
  found[at] = member:match('^[^|]*')
  start = '[' .. found[at] .. '}'
end
return found
