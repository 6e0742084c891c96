--[[ dead_index: writes the index of dead jobs, and the times at which their retention ends.

Keys: dead expiring
Unread: dead expiring
Later: dead_retention_ms
Uses: meta(fact) batch(call_many)
]]

--- Check the types of the keys that this file writes.
local function check_dead()
  check_keys()
end

--- Add jobs that died at `at` to the index.
local function index_dead(ids, at)
  local deaths, deadlines = {}, {}
  for i = 1, #ids do
    deaths[#deaths + 1], deaths[#deaths + 2] = at, ids[i]
    deadlines[#deadlines + 1] = at + fact('dead_retention_ms')
    deadlines[#deadlines + 1] = 'dead|' .. ids[i]
  end
  call_many('ZADD', dead, deaths)
  call_many('ZADD', expiring, deadlines)
end

--- Remove from the index the jobs that are requeued or removed.
local function unindex_dead(ids)
  local marks = {}
  for i = 1, #ids do
    marks[i] = 'dead|' .. ids[i]
  end
  call_many('ZREM', dead, ids)
  call_many('ZREM', expiring, marks)
end
