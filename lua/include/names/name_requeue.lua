--[[ name_requeue: jobs that come back, requeued or restored, take the names again that they are to hold. One whose name another job holds
does not come back, unless that one yields it (see include/names/name_overdue).

The list `retaken` has fields of `slots` and their values, `unmarked` members of `expiring` of names whose instant was over.

Keys: slots expiring state
Lists: retaken unmarked
Uses: call(now) parts(list_of) batch(call_many) names(name_field name_mark holder_in holds_name) deadline(note_coming)
    state(read_line) name_overdue(is_yielding yield_name)
]]

local lists = {}
local taken_here   -- field → the job that takes that name in this call; nil: there are none
local overdue      -- the job that yields the name which was asked for last, its id and record; nil: none does

local function reset()
  taken_here, overdue = nil, nil
end

--- Whether another job holds the name that this one is to hold. `job` is its record, as it comes back.
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

--- A job comes back, and takes its name, if it is to hold it. `is_name_held` was asked just before.
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

--- It comes before the deadlines: an instant may be set anew.
local function write()
  call_many('HSET', slots, lists.retaken)
  call_many('ZREM', expiring, lists.unmarked)
end
