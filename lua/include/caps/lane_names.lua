--[[ lane_names: parses the names of lanes, and writes the names of their members.

A lane's name is its priority and its scopes (`2+task=send+tenant=acme`). A member of `waiting` is the lane's name, a
place in line and an id. A lane's ORDER is its priority, followed by the place in line of its head without its first
digit. RANK is the distance between the orders of one priority and those of the next.

Kept: LANE_SHAPES
Uses: scopes(is_counted) breakers(is_breaker) place(padded PLACE_FROM PLACE_UPTO PLACE_BEHIND) memo(remember MEMO_MAX)
]]

local LANE_SHAPES = {known = {}, count = 0}

--- Return the shape of a lane, from its name: the lane's scopes, in order. `counted` has the scopes with holders, if
--- not all scopes have them; `breakers` has the scopes of breakers; `key` is the key in a fair queue. No other part of
--- a name is remembered, and only a limited number of shapes: Lua looks up each text that it makes among all texts that
--- it has. Once these are more than the processor's caches hold, the look-up costs more than making a shape again.
local function shape_of(name)
  local shape = LANE_SHAPES.known[name]
  if shape then
    return shape
  end
  shape = {}
  local from = 3
  repeat
    local plus = name:find('+', from, true)
    shape[#shape + 1] = name:sub(from, plus and plus - 1)
    from = plus and plus + 1
  until not from
  if name:find('@', 1, true) or name:find('+fair=', 1, true) then
    local counted = {}
    for i = 1, #shape do
      if is_counted(shape[i]) then
        counted[#counted + 1] = shape[i]
      elseif shape[i]:sub(1, 5) == 'fair=' then
        shape.key = shape[i]:sub(6)
      elseif is_breaker(shape[i]) then
        shape.breakers = shape.breakers or {}
        shape.breakers[#shape.breakers + 1] = shape[i]
      end
    end
    shape.counted = #counted < #shape and counted or nil
  end
  return remember(LANE_SHAPES, name, shape, MEMO_MAX)
end

--- Return the lowest order of a lane's priority.
local function base_of(name)
  return name:sub(1, 1) * RANK
end

--- Return whether a lane has the scope of a task.
local function is_of_task(name)
  return name:find('+task=', 2, true) == 2
end

--- Return, as text, the order of this lane if this member is its head. Not for a fair queue.
local function order_at(name, head)
  -- A digit for the priority, followed by the place in line without its first digit.
  return head:sub(1, 1) .. head:sub(#name + PLACE_FROM + 1, #name + PLACE_UPTO)
end

--- Return the member of `waiting` for a job with this place in line.
local function member_of(lane, seq, id)
  return lane.name .. '|' .. padded(seq) .. '|' .. id
end

--- Return the id in a member: the text after the lane's name and the place in line.
local function id_of(name, member)
  return member:sub(#name + PLACE_BEHIND)
end
