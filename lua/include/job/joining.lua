--[[ joining: jobs that become ready with a new place in line: each goes to the tail of its lane, or of its plain list.

Keys: ready
Unread: ready
Uses: state(rank) lane_standing(lane_of) lane_members(put) wake(wake_needed) batch(call_many)
]]

local tails    -- by priority: ids that join a plain list; nil if none does

local function reset()
  tails = nil
end

--- These ids, by priority, join the tails of the plain lists. Once in a call.
local function join_lists(ids)
  if #ids[0] + #ids[1] + #ids[2] + #ids[3] > 0 then
    check_keys()
    wake_needed()
    tails = ids
  end
end

--- A job joins: its record has its place in line.
local function join(id, job)
  if job.lane then
    put(lane_of(job.lane), job.seq, id)
    return
  end
  if not tails then
    check_keys()
    wake_needed()
    tails = {[0] = {}, {}, {}, {}}
  end
  local list = tails[rank(job)]
  list[#list + 1] = id
end

local function write_joining()
  for priority = 0, tails and 3 or -1 do
    call_many('RPUSH', ready[priority], tails[priority])
  end
end
