--[[ removal: jobs that leave Redis. No other file removes any, so what has to happen whenever a job ends is decided here, and where jobs die
(include/ends/death), and no way of ending can forget it. What that is, the parts know, see include/call/parts.

Keys: state jobs
Lists: gone
Uses: parts(list_of) batch(call_many) publish_ends(publish_ends)
]]

local lists = {}

--- A job leaves Redis. `job` is its record; `outcome` says how it ended, `fence` under which claim. A job without an outcome is told of
--- elsewhere.
local function end_job(id, job, outcome, fence)
  local gone = list_of(lists, 'gone')
  gone[#gone + 1] = id
  decide_parts(id, job, nil, outcome, fence)
end

--- Remove jobs, which have ended.
local function remove_jobs(ids)
  call_many('HDEL', state, ids)
  call_many('HDEL', jobs, ids)
  publish_ends(ids)
end

local function write()
  remove_jobs(lists.gone)
end
