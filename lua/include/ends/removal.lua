--[[ removal: removes jobs from Redis. No other file does, so what ends with a job is decided here, and where jobs die
(include/ends/death), and no way of ending can forget it. The parts decide what that is, see include/call/parts.

Keys: state jobs
Lists: gone
Uses: parts(list_of) batch(call_many) publish_ends(publish_ends)
]]

local lists = {}

--- End a job, which leaves Redis. `job` is its record; `outcome` says how it ended, `fence` under which claim.
--- `outcome` is nil if another job replaces it, or a restore removes it.
local function end_job(id, job, outcome, fence)
  local gone = list_of(lists, 'gone')
  gone[#gone + 1] = id
  decide_parts(id, job, nil, outcome, fence)
end

--- Remove ended jobs, and publish their ids.
local function remove_jobs(ids)
  call_many('HDEL', state, ids)
  call_many('HDEL', jobs, ids)
  publish_ends(ids)
end

local function write()
  remove_jobs(lists.gone)
end
