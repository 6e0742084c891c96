--[[ deadline: until when a claim of a job may begin. A job that waits has a member in `expiring` at that moment, so a claim finds it
even if nothing comes near its place in line. A claim takes the member away when it is over; what lets the job wait again puts it back.

Keys: expiring
Unread: expiring
Lists: coming
Uses: seldom(seldom seldom_list) batch(call_many) digits(digits)
]]

--- This member of `expiring` is met at this instant, in Unix ms.
local function note_coming(member, at)
  local coming = seldom_list('coming')
  if #coming == 0 then
    check_keys()
  end
  coming[#coming + 1], coming[#coming + 2] = at, member
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

--- Write these moments. Nothing has to be done if nothing is `seldom`.
local function write_deadlines()
  call_many('ZADD', expiring, seldom.coming)
end
