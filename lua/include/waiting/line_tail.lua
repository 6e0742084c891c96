--[[ line_tail: appends jobs that become ready to the tail of their lane or plain list.

Keys: ready
Unread: ready
Uses: state(rank) lane_states(lane_of) lane_members(put) wake(wake_needed) batch(call_many)
]]

local tails    -- by priority: ids to append to a plain list; nil without any

local function reset()
  tails = nil
end

--- Return the ids to append to the plain list of a priority; the caller may add ids. Only the type of this one list
--- is checked, which is enough: an enqueue, which nearly always needs one, is spared three commands.
local function tail_of(priority)
  tails = tails or {}
  local list = tails[priority]
  if not list then
    redis.call('LLEN', ready[priority])
    wake_needed()
    list = {}
    tails[priority] = list
  end
  return list
end

--- Append a job to its lane or list. Its record has its place in line.
local function join_line(id, job)
  if job.lane then
    put(lane_of(job.lane), job.seq, id)
    return
  end
  if not tails then
    check_keys()
  end
  local list = tail_of(rank(job))
  list[#list + 1] = id
end

local function write_line_tails()
  for priority = 0, tails and 3 or -1 do
    if tails[priority] then
      call_many('RPUSH', ready[priority], tails[priority])
    end
  end
end
