--[[ name_requeue: gives a requeued or restored job its name again, if the job is of the kind that holds it now. A job
whose name another job holds stays out, unless the other job yields the name (see include/names/name_overdue).

The list `retaken` has fields of `slots` and their values. `unmarked` has the members of `expiring` of names that were
held until an instant before, and are not now.

Keys: slots expiring state
Lists: retaken unmarked
Uses: call(now) parts(list_of) batch(call_many) names(name_field name_mark holder_in holds_name) deadline(note_coming)
    state(read_line) name_overdue(is_yielding yield_name)
]]

local lists = {}
local taken_here   -- field → the job that takes that name in this call; nil without any
local overdue      -- id and record of the job that yields the name which was last asked for; nil if no job yields it

local function reset()
  taken_here, overdue = nil, nil
end

--- Return whether another job holds the name that this job would hold. `job` is the record with which the job returns.
local function is_name_held(id, job)
  overdue = nil
  if not holds_name(job, now) then
    return false
  end
  local field = name_field(job.unique)
  local holder = taken_here and taken_here[field]
  if not holder then
    holder = holder_in(redis.call('HGET', slots, field), now)
    local other = holder and holder ~= id and read_line(redis.call('HGET', state, holder))
    if other and is_yielding(other, job.unique) then
      overdue = {holder, other}
      return false
    end
  end
  return holder ~= nil and holder ~= id
end

--- Give a job that returns its name, if it holds one. The caller has just called `is_name_held`.
local function retake_name(id, job)
  local holds, ends = holds_name(job, now)
  if not holds then
    return
  end
  local field, retaken, unmarked = name_field(job.unique), list_of(lists, 'retaken'), list_of(lists, 'unmarked')
  taken_here = taken_here or {}
  taken_here[field] = id
  if overdue then
    yield_name(overdue[1], overdue[2])
    overdue = nil
  end
  retaken[#retaken + 1], retaken[#retaken + 2] = field, ends and id .. ' ' .. ends or id
  if ends then
    note_coming(name_mark(job.unique), ends)
  else
    unmarked[#unmarked + 1] = name_mark(job.unique)
  end
end

--- Write the names. This runs before `deadline` writes, since that may add the same member again.
local function write()
  call_many('HSET', slots, lists.retaken)
  call_many('ZREM', expiring, lists.unmarked)
end
