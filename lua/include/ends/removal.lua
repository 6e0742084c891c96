--[[ removal: removes jobs from Redis; no other file does. So here, and where jobs die (include/ends/death), the parts
are asked what else ends with a job, and no way in which jobs end can omit this. See include/call/parts.

Keys: state jobs
Lists: gone
Uses: parts(list_of) batch(call_many) publish_ends(publish_ends)
]]

local lists = {}

--- End a job, which leaves Redis. `job` is its record; `outcome` is its outcome, `fence` the fence of the claim that
--- ends with it. `outcome` is nil if another job replaces it, or a restore removes it.
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
