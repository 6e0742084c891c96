--[[ lane_opening: decides which lanes are opened and blocked when something changes. A lane is blocked on a scope that
has no room. The lane waits for the cap, not each of its jobs, so blocking costs the same for any number of jobs.

To re-evaluate a scope is to open the first lane that is blocked on it, if it has room. This happens whenever
(a) a place in it becomes free (`free_places`),
(b) its limit changes or its rate resumes (`reevaluate_family`, and `reevaluate` by the caller),
(c) an open lane that contains it moves on (`moved_on`): the lane is empty now, or blocked on another scope, or its next
    job comes after that of a blocked lane.
So if a lane is blocked on a scope that has room, an open lane contains this scope, and will move on. No lane sends
another a message that it may be opened, so no such message can be lost.

Keys: blocked
Uses: digits(digits) call(now) place(PLACE_FROM PLACE_UPTO PLACE_BEHIND) breakers(end_in_breaker)
    scopes(scope_of has_room await_no_more count_out_later unhold_all) lane_names(LANE_SHAPES shape_of)
    lane_states(known_lanes first_blocked_here meet_lane block open_lane)
]]

local FAMILY_MAX = 100   -- number of scopes of a family that one call re-evaluates; claims continue with the others

local any_blocked           -- whether Redis or this call has a blocked lane; nil: not asked yet
local blocked_pages = {}    -- scope → the lanes that Redis has blocked on it, as far as they were read
local promising = {}        -- lanes that this call opened, until they move on
local promised = {}         -- scope → number of those lanes that contain it; lanes after them are blocked if the scope has no more room
local promised_until = {}   -- scope → the highest order of those lanes
local freed_shapes = {}     -- shapes of the lanes of jobs whose places must be freed…
local freed_ids = {}        -- …and the ids of these jobs
local ended_as = {}         -- id → how its claim ended, unless it succeeded: {fence, excepted}, without a fence if it did not fail
local failure_pauses        -- of `scope_paused` events: the breakers that failures of this call pause; nil without any
local is_used = false       -- whether any of these variables has changed in this call

local function reset()
  if is_used then
    is_used, any_blocked, blocked_pages = false, nil, {}
    promising, promised, promised_until = {}, {}, {}
    freed_shapes, freed_ids, ended_as, failure_pauses = {}, {}, {}, nil
  end
end

--- Return false if no lane is blocked. This is usual where caps are never reached.
local function may_be_blocked()
  if any_blocked == nil then
    is_used, any_blocked = true, redis.call('ZCARD', blocked) > 0
  end
  return any_blocked
end

--- Return the first lane that is blocked on a scope, after adding it to lane_states; nil without one.
local function meet_first_blocked(on)
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
      order, name = member:sub(#on + PLACE_FROM, #on + PLACE_UPTO), member:sub(#on + PLACE_BEHIND)
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
  is_used, any_blocked = true, true
  block(lane, name)
end

--- Open the first lane that is blocked on a scope, if the scope has room. If `before` is given, the lane is opened only
--- if its order is lower than `before`.
local function reevaluate(name, before)
  local scope = scope_of(name)
  -- For a rate, or a scope whose holders were counted, `has_room` costs at most one ZCARD. For any other scope it is
  -- called only if a lane is blocked on the scope.
  local asking_is_free = scope.rate or scope.held
  if asking_is_free and not has_room(scope) then
    return
  end
  local lane = meet_first_blocked(name)
  if lane and (not before or lane.order < before) and has_room(scope) then
    open_lane(lane)
  end
end

--- Do (c) for an open lane of this shape that has moved on: other lanes may have waited for it. `before` is its order
--- now; nil if it is no longer open. Lanes after that order continue to wait for it. `refused_by` is the scope on which
--- the lane is blocked now, which has no room; nil if it is not blocked.
local function look_behind(shape, before, refused_by)
  local own = 'fair=' .. (shape.key or '')
  for i = 1, #shape do
    local name = shape[i]
    if name ~= refused_by and name ~= own then
      reevaluate(name, before)
    end
  end
end

--- Note that an open lane has moved on, and open the lanes that waited for it.
local function moved_on(lane, refused_by)
  -- The lanes that waited for it are looked at now. Lanes that the call meets later must not wait for it any more.
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

--- Open a lane that is neither open nor blocked, or block it. A call opens no more lanes of a scope than the scope has
--- room for. Further lanes are blocked on the scope at once: the opened lanes contain it, so (c) opens the others
--- later. But a lane that comes before one of the opened lanes is opened in any case: if it were blocked, it would wait
--- until that one is served, and thus for all jobs in between.
local function find_place(lane, order)
  lane.order, lane.order_text = order, nil
  local names = lane.shape
  for i = 1, #names do
    local scope = scope_of(names[i])
    if scope.resumes and not scope.is_waited_for then
      scope.is_waited_for = meet_first_blocked(scope.name) ~= nil
      if not scope.is_waited_for then
        -- No lane waits for the rate, so a change of its limit did not re-evaluate it.
        await_no_more(scope)
      end
    end
    local before = order > (promised_until[scope.name] or 0) and promised[scope.name] or 0
    if not has_room(scope, before) or scope.rate and before > 0 then
      block_on(lane, scope.name)
      return
    end
  end
  is_used = true
  for i = 1, #names do
    local name = names[i]
    promised[name] = (promised[name] or 0) + 1
    promised_until[name] = math.max(promised_until[name] or 0, order)
  end
  promising[lane] = true
  open_lane(lane)
end

--- Note that the claim of a job ends. Its places in scopes stay taken until `free_places`, when all jobs are in their
--- places.
local function note_release(lane_name, id)
  if lane_name then
    local at = #freed_ids + 1
    is_used = true
    freed_shapes[at], freed_ids[at] = LANE_SHAPES.known[lane_name] or shape_of(lane_name), id
  end
end

--- Note, for the breakers of a job, how its claim ended without success. `fence` is the fence of a failure, else nil.
--- `excepted` has the families of the breakers that do not count the failure, joined by spaces.
local function note_end(id, fence, excepted)
  is_used = true
  ended_as[id] = {fence, excepted}
end

--- Apply the ends of these jobs' claims to the jobs' breakers.
local function end_in_breakers(shape, id)
  local ended = ended_as[id]
  for k = 1, #shape.breakers do
    local name = shape.breakers[k]
    local scope = scope_of(name)
    if scope.breaker then
      local family = ' ' .. name:match('^[^=]*') .. ' '
      local has_failed = ended and ended[1] and not (' ' .. (ended[2] or '') .. ' '):find(family, 1, true)
      local how = has_failed and 'failed' or ended and 'neither' or 'succeeded'
      local may_begin, till = end_in_breaker(scope, id, now, how)
      if till then
        failure_pauses = failure_pauses or {}
        failure_pauses[#failure_pauses + 1] = '["' .. id .. '","' .. ended[1] .. '","' .. name .. '",' .. digits(till) .. ']'
      elseif may_begin then
        await_no_more(scope)
        reevaluate(name)
      end
    end
  end
end

--- Return the part of `scope_paused` events about the breakers that failures of this call pause; nil without any.
local function pauses_of_failures()
  return failure_pauses
end

--- Free the places of all noted jobs, then re-evaluate their scopes: (a).
local function free_places()
  if #freed_ids == 0 then
    return
  end
  local shapes, ids = freed_shapes, freed_ids
  local names, guarded = unhold_all(shapes, ids)
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
  for i = 1, guarded and #guarded or 0 do
    end_in_breakers(shapes[guarded[i]], ids[guarded[i]])
  end
end

--- Do (b): re-evaluate the scopes of a family on which lanes are blocked, in order, starting after the scope `after`
--- ('' for the first), at most `most` of them. Returns the last one if there may be more; else nil.
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
