--[[ ready: reads and writes the plain lists of jobs that may be claimed, one per priority. New jobs are added at the
tail, and jobs that return are added at the head, so a job that returns keeps its place.

Keys: ready
Uses: batch(call_many)
]]

--- Put returning jobs at the head of a list. `entries` are {id, seq}; the oldest comes first.
local function return_ready(priority, entries)
  table.sort(entries, function(a, b) return a[2] > b[2] end)
  local ids = {}
  for i = 1, #entries do
    ids[i] = entries[i][1]
  end
  call_many('LPUSH', ready[priority], ids)
end

--- Return the lengths of the four lists, by priority. `usual_only` is true if the caller knows that the other lists are
--- empty. Reading the lengths also checks the types: most queues have jobs of the default priority only, and a key that
--- does not exist has no type.
local function lengths(usual_only)
  local found = {[0] = 0, 0, 0, 0}
  local usual = PRIORITY_RANK[DEFAULT_PRIORITY]
  local length = redis.call('LLEN', ready[usual])
  found[usual] = length
  if not usual_only and redis.call('EXISTS', ready[0], ready[1], ready[2], ready[3]) > (length > 0 and 1 or 0) then
    for priority = 0, 3 do
      found[priority] = redis.call('LLEN', ready[priority])
    end
  end
  return found
end
