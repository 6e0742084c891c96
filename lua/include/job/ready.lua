--[[ ready: the plain lists of jobs that may be claimed, one per priority. New jobs join at the tail, returning
ones at the head, so a job that comes back keeps its place.

Keys: ready
Uses: batch(call_many)
]]

--- Put returning jobs at the head. `entries` is a list of {id, seq}; the oldest comes first.
local function return_ready(priority, entries)
  table.sort(entries, function(a, b) return a[2] > b[2] end)
  local ids = {}
  for i = 1, #entries do
    ids[i] = entries[i][1]
  end
  call_many('LPUSH', ready[priority], ids)
end

--- How many entries the four lists have, one by one. Also their type check.
local function lengths()
  return {
    [0] = redis.call('LLEN', ready[0]), redis.call('LLEN', ready[1]),
    redis.call('LLEN', ready[2]), redis.call('LLEN', ready[3]),
  }
end
