--[[ box: returns what a durable job has saved, for the holder of its claim. A worker that lost the claim gets nothing:
if the box is empty by now, the worker would begin the job again.

If the claim is not in force, the answer is empty. Otherwise LIFE is the job's life, empty if nothing was saved. HEADER
follows, and then at most ENTRIES entries from FIRST on. Once the entries have BYTES, no further entry follows. If the
values of the whole box have fewer bytes, one command reads the page.

Keys: state boxes
Args: id fence worker first
Given: ENTRIES BYTES LINE_MAX
Returns: | LIFE HEADER ENTRY…
]]

local line = redis.call('HSTRLEN', state, id) <= LINE_MAX and redis.call('HGET', state, id)
if not line or not line:find(' fence=' .. fence .. ' by=' .. worker .. ' ', 1, true) then
  return {}
end
local life = line:match(' life=(%S+)')
local header = life and redis.call('HGET', boxes, life)
local found, size = {life or '', header or ''}, 0
local entries = tonumber((header or ''):match(' entries=(%d+)')) or 0
local last = math.min(entries, first + ENTRIES - 1)
if (tonumber((header or ''):match(' bytes=(%d+)')) or BYTES) < BYTES and last >= tonumber(first) then
  local names = {}
  for number = tonumber(first), last do
    names[#names + 1] = life .. '|' .. string.format('%.0f', number)
  end
  for i, entry in ipairs(redis.call('HMGET', boxes, unpack(names))) do
    found[i + 2] = entry
  end
  return found
end
for number = tonumber(first), last do
  local entry = redis.call('HGET', boxes, life .. '|' .. string.format('%.0f', number))
  found[#found + 1] = entry
  size = size + #(entry or '')
  if size >= BYTES then
    break
  end
end
return found
