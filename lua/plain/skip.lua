--[[ skip: removes the entries at the head of a ready list whose jobs are gone, up to the first entry with a job, and at
most about `most`. Claims skip such entries, too: after a cancel of very many jobs, these calls leave them less to skip.

No value is read, since the values of jobs that are there may be long.

Flags: allow-oom
Keys: list jobs state meta
Args: most
Given: PAGE
Returns: the number of removed entries
]]

local gone, size = 0, PAGE
while size == PAGE and gone < tonumber(most) do
  local ids = redis.call('LRANGE', list, gone, gone + PAGE - 1)
  local lines = #ids > 0 and redis.call('HMGET', state, unpack(ids)) or {}
  size = 0
  while size < #ids and not lines[size + 1] and redis.call('HEXISTS', jobs, ids[size + 1]) == 0 do
    size = size + 1
  end
  gone = gone + size
end
if gone > 0 then
  local counted = tonumber(redis.call('HGET', meta, 'tombstones')) or 0
  redis.call('LTRIM', list, gone, -1)
  if counted > 0 then
    redis.call('HSET', meta, 'tombstones', math.max(0, counted - gone))
  end
end
return gone
