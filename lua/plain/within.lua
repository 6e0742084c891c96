--[[ within: returns for each range of a sorted set with one score the first MOST members; if MOST is empty, how many members there are.

Keys: index
Args: {LOW HIGH MOST}…
Returns: {MEMBER…}… | COUNT…
]]

local found = {}
for at = 1, #ARGV, 3 do
  local low, high, most = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if most == '' then
    found[#found + 1] = redis.call('ZLEXCOUNT', index, low, high)
  else
    found[#found + 1] = redis.call('ZRANGEBYLEX', index, low, high, 'LIMIT', 0, most)
  end
end
return found
