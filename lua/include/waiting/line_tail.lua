--[[ line_tail: jobs that become ready with a new place in line: each goes to the tail of its lane, or of its plain list.

Keys: ready
Unread: ready
Uses: state(rank) lane_states(lane_of) lane_members(put) wake(wake_needed) batch(call_many)
]]

local tails    -- by priority: ids that join a plain list; nil if none does

local function reset()
  tails = nil
end

--- The ids that join the plain list of a priority; more may be added. Of the lists it checks this one's type only, which is
--- enough: an enqueue, which nearly always needs one, is spared three commands.
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

--- A job joins: its record has its place in line.
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
