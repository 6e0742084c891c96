--[[ deadline: until when a claim of a job may begin. A job that waits has a member in `expiring` at that moment, so a claim finds it
even if nothing comes near its place in line. A claim takes the member away when it is over; what lets the job wait again puts it back.

Keys: expiring
Unread: expiring
Uses: batch(call_many)
]]

local coming   -- deadlines and members of `expiring` of jobs that wait; nil if there are none

local function reset()
  coming = nil
end

--- The member of `expiring` that has the deadline of a job.
local function deadline_of(id)
  return 'job|' .. id
end

--- A job waits, and its claim must begin before this moment, in Unix ms.
local function note_deadline(id, expires)
  if not coming then
    check_keys()
    coming = {}
  end
  coming[#coming + 1], coming[#coming + 2] = expires, deadline_of(id)
end

--- Whether no claim of a job may begin any more.
local function is_over(job, at)
  return job.expires ~= nil and tonumber(job.expires) <= at
end

local function write_deadlines()
  call_many('ZADD', expiring, coming)
end
