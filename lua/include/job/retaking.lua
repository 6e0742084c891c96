--[[ retaking: jobs that come back, requeued or restored, take the names again that they are to hold. One whose name another job holds
does not come back.

The `seldom` list `retaken` has fields of `slots` and their values, `unmarked` members of `expiring` of names whose instant was over.

Keys: slots expiring
Uses: call(now seldom seldom_list) batch(call_many) names(name_field name_mark holder_in holds_name) deadline(note_coming)
]]

local taken_here   -- field → the job that takes that name in this call; nil: there are none

local function reset()
  taken_here = nil
end

--- Whether another job holds the name that this one is to hold. `job` is its record, as it comes back.
local function is_held(id, job)
  if not holds_name(job, now) then
    return false
  end
  local field = name_field(job.unique)
  local holder = taken_here and taken_here[field] or holder_in(redis.call('HGET', slots, field), now)
  return holder ~= nil and holder ~= id
end

--- A job comes back, and takes its name, if it is to hold it.
local function retake(id, job)
  local holds, ends = holds_name(job, now)
  if not holds then
    return
  end
  local field, retaken, unmarked = name_field(job.unique), seldom_list('retaken'), seldom_list('unmarked')
  taken_here = taken_here or {}
  taken_here[field] = id
  retaken[#retaken + 1], retaken[#retaken + 2] = field, ends and id .. ' ' .. ends or id
  if ends then
    note_coming(name_mark(job.unique), ends)
  else
    unmarked[#unmarked + 1] = name_mark(job.unique)
  end
end

--- Write that, before `write_deadlines`. Nothing has to be done if nothing is `seldom`.
local function write_retaken()
  call_many('HSET', slots, seldom.retaken)
  call_many('ZREM', expiring, seldom.unmarked)
end
