--[[ lane_members: holds the jobs of a lane, first in, first out: jobs that Redis has, read page by page, and jobs that
join or leave in this call.

Keys: waiting
Uses: digits(digits) lane_names(base_of order_at member_of) lane_states(reorder) lane_opening(find_place reevaluate)
    lane_fair(is_fair order_of) wake(wake_needed)
]]

local FIRST_STEP = 2    -- number of members in the first page of a lane: its head, and the next one
local FIRST_TEXT = '2'

local leaving = {}      -- members of `waiting` to remove
local left_early        -- the members among these that later pages may still contain; nil without any

local function reset()
  left_early = nil
  if #leaving > 0 then
    leaving = {}
  end
end

--- Put a job into its lane. `job` is its record if this call may still claim it; the job's line in Redis is older.
local function put(lane, seq, id, job)
  local member = member_of(lane, seq, id)
  local added = lane.added
  if not added then
    added = {}
    lane.added = added
  end
  local at = #added
  while at > 0 and added[at] > member do
    added[at + 1] = added[at]
    at = at - 1
  end
  added[at + 1] = member
  if job then
    lane.jobs = lane.jobs or {}
    lane.jobs[member] = job
  end
  seq = tonumber(seq)
  if not lane.where then
    find_place(lane, order_of(lane.name, seq))
  elseif not is_fair() and base_of(lane.name) + seq < lane.order then
    reorder(lane, base_of(lane.name) + seq)
    if lane.where == 'blocked' then
      reevaluate(lane.on)
    end
  end
  if lane.where == 'open' then
    wake_needed()
  end
end

--- Continue a lane with a page of its members, which was read with the limit `step`. If the page is not full, Redis has
--- no further members of the lane (`last`).
local function turn_page(lane, members, step)
  lane.members, lane.at, lane.offset, lane.last = members, 1, lane.offset + #members, #members < step
end

--- Return the first page of a lane.
local function first_members(name)
  return redis.call('ZRANGEBYLEX', waiting, '[' .. name .. '|', '(' .. name .. '}', 'LIMIT', '0', FIRST_TEXT)
end

--- Read the next page of a lane's members. Most lanes give one or two jobs in a call, and lanes that give more give
--- many, so pages grow fast.
local function read_page(lane)
  local step = lane.offset == 0 and FIRST_STEP or math.min(8 * lane.offset, 100)
  turn_page(lane, redis.call('ZRANGEBYLEX', waiting, '[' .. lane.name .. '|', '(' .. lane.name .. '}', 'LIMIT',
    digits(lane.offset), digits(step)), step)
  return lane.members
end

--- Return the first member of a lane, or nil.
local function peek(lane)
  local members = lane.members
  if not members then
    members = {}
    lane.members = members
  end
  local stored = members[lane.at]
  while true do
    if stored and left_early and left_early[stored] then
      lane.at = lane.at + 1
    elseif stored or lane.last then
      break
    else
      members = read_page(lane)
    end
    stored = members[lane.at]
  end
  local added = lane.added and lane.added[1]
  if added and (not stored or added < stored) then
    return added
  end
  return stored
end

--- Remove these members from Redis. The caller updates their lanes.
local function leave_all(members)
  local at = #leaving
  for i = 1, #members do
    leaving[at + i] = members[i]
  end
end

--- Return whether this call removes a member that is not at the head of its lane.
local function has_gaps()
  return left_early ~= nil
end

--- Remove a member from its lane, wherever it is in the lane, and give the lane the order of its new head, or no place
--- if it is empty. Without a member, since the caller has removed the first members itself, only update the order or
--- place.
local function remove(lane, member)
  local members, added = lane.members, lane.added
  local is_added = false
  if member and members and members[lane.at] == member then
    lane.at = lane.at + 1
    leaving[#leaving + 1] = member
  elseif member then
    for i = 1, added and #added or 0 do
      if added[i] == member then
        table.remove(added, i)
        is_added = true
        break
      end
    end
    if not is_added then
      leaving[#leaving + 1] = member
      left_early = left_early or {}
      left_early[member] = true
    end
  end
  local head = peek(lane)
  if not head then
    lane.where, lane.on = nil, nil
  elseif not is_fair() then
    local text = order_at(lane.name, head)
    if text ~= lane.order_text then
      reorder(lane, tonumber(text))
      lane.order_text = text
    end
  end
end
