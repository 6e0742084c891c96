--[[ lane_write: writes all changes of lanes and scopes that a call has decided, after its event.

Keys: waiting lanes open blocked
Unread: waiting open blocked lanes
Uses: batch(call_many set_many) place(padded) scopes(check_scopes write_scopes holders_change) lane_states(lane_list)
    lane_members(leaving) lane_fair(write_fair)
]]

-- Lanes that are not in `lane_list`, from a claim's fast path: arguments of ZADD `open`, HSET `lanes` and ZREM `open`.
local also_opening, also_places, also_shut
local leaving_runs = {}   -- first and last members of ranges to remove

local function reset()
  also_opening, also_places, also_shut = nil, nil, nil
  if #leaving_runs > 0 then
    leaving_runs = {}
  end
end

--- Write these lanes as well.
local function write_also(opening, places, shut)
  also_opening, also_places, also_shut = opening, places, shut
end

--- Remove all members from the first to the last.
local function leave_run(first, last)
  leaving_runs[#leaving_runs + 1], leaving_runs[#leaving_runs + 2] = first, last
end

--- Return whether this call has met a lane.
local function has_met_lanes()
  return #lane_list > 0 or also_places ~= nil
end

--- Return by how much the number of open lanes grows in this call.
local function open_growth()
  local growth = also_shut and -#also_shut or 0
  for i = 1, #lane_list do
    local lane = lane_list[i]
    growth = growth + (lane.where == 'open' and 1 or 0) - (lane.was == 'open' and 1 or 0)
  end
  return growth
end

--- Check the types of the keys of lanes and scopes, before the first write. (A key of `fair` that is written was read.)
--- Sends nothing if the call has met no lane and changes no holders.
local function check_lanes()
  if has_met_lanes() or holders_change() then
    check_keys()
    check_scopes()
  end
end

--- Write the states and orders of lanes.
local function write_places()
  local joining, gone, unblocked, blocking = {}, {}, {}, {}
  local opening, places, shut = also_opening or {}, also_places or {}, {}
  for i = 1, also_shut and #also_shut or 0 do
    gone[i], shut[i] = also_shut[i], also_shut[i]
  end
  for i = 1, #lane_list do
    local lane = lane_list[i]
    local added = lane.added
    for k = 1, added and #added or 0 do
      joining[#joining + 1], joining[#joining + 2] = '0', added[k]
    end
    local text = lane.order_text
    if lane.where and not text then
      text = padded(lane.order)
    end
    if lane.where ~= lane.was or lane.on ~= lane.was_on or text ~= lane.was_text then
      if lane.was == 'blocked' then
        unblocked[#unblocked + 1] = lane.was_on .. '|' .. lane.was_text .. '|' .. lane.name
      elseif lane.was == 'open' and lane.where ~= 'open' then
        shut[#shut + 1] = lane.name
      end
      if lane.where == 'open' then
        opening[#opening + 1], opening[#opening + 2] = text, lane.name
        places[#places + 1], places[#places + 2] = lane.name, 'open ' .. text
      elseif lane.where == 'blocked' then
        blocking[#blocking + 1], blocking[#blocking + 2] = '0', lane.on .. '|' .. text .. '|' .. lane.name
        places[#places + 1], places[#places + 2] = lane.name, 'blocked ' .. lane.on .. ' ' .. text
      elseif lane.was then
        gone[#gone + 1] = lane.name
      end
    end
  end
  for i = 1, #leaving_runs, 2 do
    redis.call('ZREMRANGEBYLEX', waiting, '[' .. leaving_runs[i], '[' .. leaving_runs[i + 1])
  end
  call_many('ZREM', waiting, leaving)
  call_many('ZADD', waiting, joining)
  call_many('ZREM', open, shut)
  call_many('ZADD', open, opening)
  call_many('ZREM', blocked, unblocked)
  call_many('ZADD', blocked, blocking)
  call_many('HDEL', lanes, gone)
  set_many(lanes, places)
end

--- Write all changes of lanes and scopes.
local function write_lanes()
  if has_met_lanes() then
    write_places()
  end
  write_fair()
  write_scopes()
end
