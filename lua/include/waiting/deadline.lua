--[[ deadline: keeps the deadlines of jobs that wait: the instant from which on no claim may begin.

A job that waits and has a deadline has a member in `expiring` at that instant, so a claim finds the job even if its
place in line is far back. Once the instant is over, a claim removes the member. If the job waits again later, the
member is added again. The member ends with the job.

Fact: ties
Field: expires
Keys: expiring
Unread: expiring
Lists: coming over
Uses: parts(list_of) batch(call_many) digits(digits)
]]

local lists = {}

--- Add a member to `expiring`, at this instant (Unix ms).
local function note_coming(member, at)
  local coming = list_of(lists, 'coming')
  coming[#coming + 1], coming[#coming + 2] = at, member
end

--- Remove a member from `expiring`.
local function note_over(member)
  local over = list_of(lists, 'over')
  over[#over + 1] = member
end

--- Note the deadline (Unix ms) of a job that waits. A value that a client has damaged is left to the doctor: Redis
--- would refuse it as a score, after the first write.
local function note_deadline(id, expires)
  local at = whole_number(expires)
  if at then
    note_coming('job|' .. id, digits(at))
  end
end

--- Return whether a job's deadline is over, so that no claim of it may begin.
local function is_over(job, at)
  return job.expires ~= nil and tonumber(job.expires) <= at
end

local function decide(id)
  note_over('job|' .. id)
  return true
end

local function check()
  check_keys()
end

local function write()
  call_many('ZREM', expiring, lists.over)
  call_many('ZADD', expiring, lists.coming)
end
