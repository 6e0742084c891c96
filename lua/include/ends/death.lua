--[[ death: marks jobs as dead; they stay in Redis, see include/ends/dead_index. No other file makes a live job dead.

Later: dead_retention_ms
Lists: died
Uses: call(now) parts(list_of) meta(read_now) dead_index(check_dead index_dead) publish_ends(publish_ends)
]]

local lists = {}

--- Mark a job as dead, for this reason, in its record; the caller writes its line.
local function mark_dead(id, job, why)
  job.state, job.reason = 'dead', why
  read_now('dead_retention_ms')
  local died = list_of(lists, 'died')
  died[#died + 1] = id
  decide_parts(id, job, nil, 'dies')
end

local function check()
  check_dead()
end

local function write()
  index_dead(lists.died, now)
  publish_ends(lists.died)
end
