--[[ lane_opening: which lane may be served when something changes. A lane that has no room in one of its scopes is blocked
on that scope; what waits for a cap is the lane, so blocking costs the same whatever waits in it.

To re-evaluate a scope is to open the first lane that is blocked on it, if it has room. This happens whenever
(a) a place in it becomes free (`free_places`),
(b) its limit changes or its rate resumes (`reevaluate_family`, and `reevaluate` by the caller),
(c) an open lane that contains it moves on (`moved_on`): it is emptied, blocked on another scope, or stands behind one that
    is blocked.
So no scope has room and a blocked lane unless an open lane contains it; there is no hand-off that could be lost.

Keys: blocked
Uses: digits(digits) scopes(scope_of has_room await_no_more count_out_later unhold_all) lane_names(LANE_SHAPES shape_of)
    lane_standing(known_lanes first_blocked_here meet_lane block open_lane)
]]

local FAMILY_MAX = 100   -- scopes of a family that one call re-evaluates; claims go on with the rest

local any_blocked           -- whether Redis or this call has a blocked lane; nil: not asked yet
local blocked_pages = {}    -- scope → what Redis has blocked on it, as far as it was read
local promising = {}        -- lanes that were opened here, until they move on
local promised = {}         -- scope → how many of them contain it
local promised_until = {}   -- scope → the last order among them
local freed_shapes = {}     -- what the lanes say whose jobs free places, once everything is put back…
local freed_ids = {}        -- …and the ids of these jobs

local function reset()
  any_blocked = nil
  if next(blocked_pages) then
    blocked_pages = {}
  end
  if next(promised) then
    promising, promised, promised_until = {}, {}, {}
  end
  if #freed_ids > 0 then
    freed_shapes, freed_ids = {}, {}
  end
end

--- False if no lane is blocked at all, which is the rule where caps are never reached.
local function may_be_blocked()
  if any_blocked == nil then
    any_blocked = redis.call('ZCARD', blocked) > 0
  end
  return any_blocked
end

--- The first lane that is blocked on a scope, nil if there is none.
local function first_blocked(on)
  if not may_be_blocked() then
    return nil
  end
  local page = blocked_pages[on] or {members = {}, at = 1, offset = 0, step = 1}
  blocked_pages[on] = page
  local best, order, name
  while not page.finished do
    local member = page.members[page.at]
    if not member then
      page.members = redis.call('ZRANGEBYLEX', blocked, '[' .. on .. '|', '(' .. on .. '}', 'LIMIT',
        digits(page.offset), digits(page.step))
      page.finished = #page.members == 0
      page.offset, page.at, page.step = page.offset + #page.members, 1, math.min(page.step * 2, 100)
    else
      order, name = member:sub(#on + 2, #on + 17), member:sub(#on + 19)
      if not known_lanes[name] then
        best = tonumber(order)
        break
      end
      page.at = page.at + 1
    end
  end
  return first_blocked_here(on, best) or best and meet_lane(name, 'blocked', on, order)
end

--- Block a lane on a scope that has no room.
local function block_on(lane, name)
  any_blocked = true
  block(lane, name)
end

--- Open the first lane that is blocked on a scope, if the scope has room (and, with `before`, if the lane comes before
--- that order).
local function reevaluate(name, before)
  local scope = scope_of(name)
  if (scope.rate or scope.stored) and not has_room(scope) then
    return
  end
  local lane = first_blocked(name)
  if lane and (not before or lane.order < before) and has_room(scope) then
    open_lane(lane)
  end
end

--- (c): an open lane of this shape has moved on: to the place in line `before`, if it is still open; `refused_by` is the
--- scope that it is now blocked on. The lanes that it kept waiting are looked at here, so it keeps no lane waiting that is met later in
--- this call.
local function look_behind(shape, before, refused_by)
  local own = 'fair=' .. (shape.key or '')
  for i = 1, #shape do
    local name = shape[i]
    if name ~= refused_by and name ~= own then
      reevaluate(name, before)
    end
  end
end

--- An open lane has moved on.
local function moved_on(lane, refused_by)
  if promising[lane] then
    local names = lane.shape
    promising[lane] = nil
    for i = 1, #names do
      promised[names[i]] = 0
    end
  end
  if may_be_blocked() then
    look_behind(lane.shape, lane.where == 'open' and lane.order or nil, refused_by)
  end
end

--- Find its place for a lane that has none. Beyond as many lanes as a scope has room for it is blocked at once: the
--- lanes opened before it contain the scope, and open it when they move on. It may come before them, though; then they
--- would make it wait for all that comes before them.
local function find_place(lane, order)
  lane.order, lane.order_text = order, nil
  local names = lane.shape
  for i = 1, #names do
    local scope = scope_of(names[i])
    if scope.resumes and not scope.is_waited_for then
      scope.is_waited_for = first_blocked(scope.name) ~= nil
      if not scope.is_waited_for then
        -- No lane waits for it, so a change of its limit did not look at it.
        await_no_more(scope)
      end
    end
    local before = order > (promised_until[scope.name] or 0) and promised[scope.name] or 0
    if not has_room(scope, before) or scope.rate and before > 0 then
      block_on(lane, scope.name)
      return
    end
  end
  for i = 1, #names do
    local name = names[i]
    promised[name] = (promised[name] or 0) + 1
    promised_until[name] = math.max(promised_until[name] or 0, order)
  end
  promising[lane] = true
  open_lane(lane)
end

--- The claim of a job ends: its places in scopes will be free.
local function release(lane_name, id)
  if lane_name then
    local at = #freed_ids + 1
    freed_shapes[at], freed_ids[at] = LANE_SHAPES.known[lane_name] or shape_of(lane_name), id
  end
end

--- Free the places, then re-evaluate their scopes: (a).
local function free_places()
  if #freed_ids == 0 then
    return
  end
  local names = unhold_all(freed_shapes, freed_ids)
  freed_shapes, freed_ids = {}, {}
  count_out_later(names)
  local seen = {}
  for i = 1, #names > 0 and may_be_blocked() and #names or 0 do
    local name = names[i]
    if not seen[name] then
      seen[name] = true
      reevaluate(name)
    end
  end
end

--- (b): re-evaluate all scopes of a family, in order, from after `after` on ('' for the first), at most `most` of them.
--- Returns the last one if there are more.
local function reevaluate_family(family, after, most)
  for _ = 1, most do
    local from = after == '' and '[' .. family .. '=' or '(' .. after .. '}'
    local member = redis.call('ZRANGEBYLEX', blocked, from, '(' .. family .. '>', 'LIMIT', '0', '1')[1]
    if not member then
      return nil
    end
    after = member:match('^([^|]*)|')
    await_no_more(scope_of(after))
    reevaluate(after)
  end
  return after
end
