--[[ within: returns the first MOST members of each range of a sorted set whose members have one score; if MOST is empty,
the number of members of each range.

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
