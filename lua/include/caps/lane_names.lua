--[[ lane_names: what the name of a lane says, and how its members are written.

A lane's name is its priority and its scopes (`2+task=send+tenant=acme`); a member of `waiting` is the lane's name, a place
in line and an id. A lane's ORDER is its priority, then the place in line of its head without its first digit;
RANK is how far the orders of one priority are from the next one's.

Kept: LANE_SHAPES
Uses: scopes(is_counted) place(padded PLACE_FROM PLACE_UPTO PLACE_BEHIND) memo(remember MEMO_MAX)
]]

local LANE_SHAPES = {known = {}, count = 0}

--- What a lane's name says: its scopes, in order; `counted` are those of them that have holders, if not all have; `key` is
--- that of a fair queue. Nothing else is remembered, and of some lanes only: Lua looks each text up among all that it has,
--- and where those are more than the processor's caches hold, to look costs more than to make them again.
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
      end
    end
    shape.counted = #counted < #shape and counted or nil
  end
  return remember(LANE_SHAPES, name, shape, MEMO_MAX)
end

--- Where the orders of a lane's priority begin.
local function base_of(name)
  return name:sub(1, 1) * RANK
end

--- Whether a lane is one of jobs of a task whose caps name it.
local function is_of_task(name)
  return name:find('+task=', 2, true) == 2
end

--- The order of this lane if its head is this member, as text; not in a fair queue.
local function order_at(name, head)
  -- A digit for the priority, then the place in line without its first digit.
  return head:sub(1, 1) .. head:sub(#name + PLACE_FROM + 1, #name + PLACE_UPTO)
end

--- The member of `waiting` of a job with this place in line.
local function member_of(lane, seq, id)
  return lane.name .. '|' .. padded(seq) .. '|' .. id
end

--- The id of a member's job: the text behind the lane's name and the place in line.
local function id_of(name, member)
  return member:sub(#name + PLACE_BEHIND)
end
