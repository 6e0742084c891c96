--[[ deadline: until when a claim of a job may begin. A job that waits has a member in `expiring` at that moment, so a claim finds it
even if nothing comes near its place in line. A claim takes the member away when it is over; what lets the job wait again puts it back.
It ends with the job.

Fact: ties
Field: expires
Keys: expiring
Unread: expiring
Lists: coming over
Uses: parts(list_of) batch(call_many) digits(digits)
]]

local lists = {}

--- This member of `expiring` is met at this instant, in Unix ms.
local function note_coming(member, at)
  local coming = list_of(lists, 'coming')
  coming[#coming + 1], coming[#coming + 2] = at, member
end

--- This member of `expiring` is not met any more.
local function note_over(member)
  local over = list_of(lists, 'over')
  over[#over + 1] = member
end

--- A job waits, and its claim must begin before this instant, in Unix ms. What a client has damaged is left to the doctor: Redis would
--- refuse it as a score, behind the first write.
local function note_deadline(id, expires)
  local at = whole_number(expires)
  if at then
    note_coming('job|' .. id, digits(at))
  end
end

--- Whether no claim of a job may begin any more.
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
