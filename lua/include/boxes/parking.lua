--[[ parking: keeps `parked`, the index of the jobs that are parked. A parked job has the field `waits` in its line; if it
waits for a moment, it has a member in `scheduled`, as a job has that is not due yet.

Fact: durable
Field: waits
Lists: left
Uses: parts(list_of) box(unindex_parked)
]]

local lists = {}

--- Remove the marks of a parked job from its record, and the job from the index. The caller says where it goes.
local function unpark(id, job)
  job.waits, job.due = nil, nil
  local left = list_of(lists, 'left')
  left[#left + 1] = id
end

local function decide(id)
  local left = list_of(lists, 'left')
  left[#left + 1] = id
  return true
end

local function write()
  unindex_parked(lists.left)
end
