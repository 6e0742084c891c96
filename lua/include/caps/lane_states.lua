--[[ lane_states: holds the lanes that a call has met, and whether each is open, blocked on a scope, or neither.

The states are decided in Lua. `write_lanes` writes them at the end.

Keys: lanes
Uses: batch(read_many) heap(heap_push heap_pop) lane_names(shape_of) wake(wake_needed)
]]

local known_lanes = {}    -- name → lane
local lane_list = {}      -- the same lanes in the order in which they were met
local blocked_here = {}   -- scope → lanes that are, or were, blocked on it in this call
local open_lanes = {}     -- a heap of open lanes; an entry is skipped if its lane has another order or state now
local front               -- an open lane that is not in the heap: the one that was added last, since it is often the next one

local function reset()
  if #lane_list > 0 then
    known_lanes, lane_list, blocked_here, open_lanes, front = {}, {}, {}, {}, nil
  end
end

--- Return whether the call has met a lane of this name.
local function is_met(name)
  return known_lanes[name] ~= nil
end

local function note_blocked(lane)
  local list = blocked_here[lane.on] or {}
  list[#list + 1] = lane
  blocked_here[lane.on] = list
end

local function block(lane, on)
  lane.where, lane.on = 'blocked', on
  note_blocked(lane)
end

--- Return the first lane that the call has met and that is blocked on a scope, if its order is lower than `best`; else
--- nil.
local function first_blocked_here(on, best)
  local here = blocked_here[on]
  if not here then
    return nil
  end
  local left, first = {}, nil
  for i = 1, #here do
    local lane = here[i]
    if lane.where == 'blocked' and lane.on == on then
      left[#left + 1] = lane
      if not best or lane.order < best then
        best, first = lane.order, lane
      end
    end
  end
  blocked_here[on] = left
  return first
end

--- Add an open lane to the open lanes, by its order.
local function stand(lane)
  if front and front ~= lane then
    heap_push(open_lanes, front.order, front)
  end
  front = lane
end

--- Return the first open lane that the call has met; nil without one.
local function first_known()
  if front and front.where ~= 'open' then
    front = nil
  end
  local order, top = open_lanes[1], open_lanes[2]
  while top and (top.where ~= 'open' or top.order ~= order or top == front) do
    heap_pop(open_lanes)
    order, top = open_lanes[1], open_lanes[2]
  end
  if top and (not front or order <= front.order) then
    return top
  end
  return front
end

--- Return an order that is not above those of the other open lanes that the call has met.
local function first_other(lane)
  return math.min(open_lanes[1] or math.huge,
    front and front ~= lane and front.where == 'open' and front.order or math.huge)
end

local function open_lane(lane)
  lane.where, lane.on = 'open', nil
  wake_needed()
  stand(lane)
end

--- Give a lane another order. It stays open, or blocked on its scope.
local function reorder(lane, order)
  lane.order, lane.order_text = order, nil
  if lane.where == 'open' then
    stand(lane)
  end
end

--- Add a lane with its state so far: `open`, `blocked` on a scope, or neither (nil). `text` is its order as text,
--- `order` the same as a number.
local function meet_lane(name, where, on, text, order)
  -- At most 16 fields: a table that grows beyond that costs as much as three tables.
  local lane = {
    name = name, shape = shape_of(name), where = where, on = on, order = order or tonumber(text), order_text = text,
    was = where, was_on = on, was_text = text, added = nil,
    members = nil, at = 1, offset = 0, last = nil,
  }
  known_lanes[name] = lane
  lane_list[#lane_list + 1] = lane
  if where == 'blocked' then
    note_blocked(lane)
  end
  return lane
end

--- Read and add many lanes with one command.
local function meet_lanes(names)
  local unknown, seen = {}, {}
  for i = 1, #names do
    local name = names[i]
    if not seen[name] and not known_lanes[name] then
      seen[name] = true
      unknown[#unknown + 1] = name
    end
  end
  local places = read_many(lanes, unknown)
  for i = 1, #unknown do
    local where, on, order
    if places[i] and places[i]:sub(1, 5) == 'open ' then
      where, order = 'open', places[i]:sub(6)
    elseif places[i] then
      where, on, order = places[i]:match('^(%l+) (%S+) (%d+)$')
    end
    local lane = meet_lane(unknown[i], where, on, order)
    if where == 'open' then
      stand(lane)
    end
  end
end

local function lane_of(name)
  if not known_lanes[name] then
    meet_lanes({name})
  end
  return known_lanes[name]
end
