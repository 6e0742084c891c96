--[[ heads: returns the entries of a durable job's box, without the results of its steps and of its children.

The answer begins with HEADER, or is empty if there is no box. Entries from FIRST on follow, each as its first line. An
entry of rq-core itself has its value, too: its name begins with OWN or MAP, or ends with JOIN. At most ENTRIES entries
follow. Once BYTES were read, no further entry follows.

Keys: boxes
Args: life first
Given: ENTRIES BYTES CHUNK OWN MAP JOIN
Returns: | HEADER ENTRY…
]]

local header = redis.call('HGET', boxes, life)
if not header then
  return {}
end
local found, size = {header}, 0
local entries = tonumber(header:match(' entries=(%d+)')) or 0
local next, last = tonumber(first), math.min(entries, first + ENTRIES - 1)
while next <= last and size < BYTES do
  local names = {}
  for number = next, math.min(last, next + CHUNK - 1) do
    names[#names + 1] = life .. '|' .. string.format('%.0f', number)
  end
  for _, entry in ipairs(redis.call('HMGET', boxes, unpack(names))) do
    local text = entry or ''
    size = size + #text
    local line_end = text:find('\n', 1, true)
    if line_end then
      local name = text:match('^%S*')
      if name:sub(1, #OWN) ~= OWN and name:sub(1, #MAP) ~= MAP and name:sub(-#JOIN) ~= JOIN then
        text = text:sub(1, line_end - 1)
      end
    end
    found[#found + 1] = text
  end
  next = next + #names
end
return found
