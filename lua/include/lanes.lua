--[[ lanes: how jobs with scopes wait.

Jobs of the same priority and scopes wait in one lane, first in first out. A lane is open (it may be served) or blocked
on one scope that has no room. What waits for a cap is the lane, so blocking costs the same whatever waits in it.

A lane's ORDER is its priority and the place in line of its head; in a fair queue, the virtual time of its key instead of
the place (start-time fair queueing: Goyal, Vin, Cheng 1996).

To re-evaluate a scope is to open the first lane that is blocked on it, if it has room. This happens whenever
(a) a place in it becomes free, (b) its limit changes or its rate resumes, (c) an open lane that contains it moves on: it
is emptied, blocked on another scope, or stands behind one that is blocked. So no scope has room and a blocked lane
unless an open lane contains it; there is no hand-off that could be lost.

All of it is decided in Lua and written by `write_lanes` in the end.

Keys: waiting lanes open blocked caps holders rates scheduled expiring fair
Meta: fair
Later: fair_clock fair_top
Uses: batch meta scopes heap place digits memo
]]

local RANK = 1e15       -- orders of one priority are below the next one's
local FAIR_STEP = 10000 -- virtual time that one job of weight 1 takes
local FIRST_STEP = 2       -- members in the first page of a lane: its head, and the next one
local FIRST_TEXT = '2'
local SCOPES_MAX = 100    -- scopes of a family that one call re-evaluates; claims go on with the rest

local known_lanes, lane_list = {}, {}
local leaving = {}        -- members of `waiting` that leave
local leaving_runs = {}   -- the first and the last of those that stand side by side and leave
local left_early = nil    -- those of them that no page may give any longer
local blocked_here = {}   -- scope → lanes of this call that are, or were, blocked on it
local blocked_pages = {}  -- scope → what Redis has blocked on it, as far as it was read
local open_lanes = {}     -- a heap; entries whose lane has moved on are passed over
local front = nil         -- an open lane that is not in the heap: the last one that came, since it is often the next one
local finishes = {}       -- fair: key → virtual finish time, as far as it was read
local weights = {}
local finished = {}       -- fair: keys whose finish time changed
local opened = false      -- whether a lane may be served that could not before, or has more to serve
local any_blocked = nil
local promising = {}      -- lanes that were opened here, until they move on
local promised = {}       -- scope → how many of them contain it
local promised_until = {} -- scope → the last order among them

-- Open lanes that were served in passing, once each, and then stand behind all that was served since: their names and
-- first members, side by side; what is to be written of those that go on, and the names of those that are empty now.
local visited, visited_members = {}, {}
local visited_open, visited_places, visited_shut = {}, {}, {}
local visited_first = nil -- the first order among them now

local LANE_SHAPES = {known = {}, count = 0}

--- What a lane's name says: its scopes, in order; `counted` are those of them that have holders, if not all have; `key` is
--- that of a fair queue. Nothing else is remembered, and of some lanes only: Lua looks each text up among all that it has,
--- and where those are more than the processor's caches hold, to look costs more than to make them anew.
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
  return remember(LANE_SHAPES, name, shape, SHAPES_MAX)
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
  -- A digit for the priority, then the place in line.
  return head:sub(1, 1) .. head:sub(#name + 3, #name + 17)
end

--- Where a job with a place in line stands in its lane.
local function member_of(lane, seq, id)
  return lane.name .. '|' .. padded(seq) .. '|' .. id
end

--- Whose member of this lane it is: behind its name and the place in line.
local function id_of(name, member)
  return member:sub(#name + 19)
end

--- The virtual finish time of a fair queue's key.
local function finish_of(key)
  key = key or ''
  if not finishes[key] then
    finishes[key] = tonumber(redis.call('ZSCORE', fair, key)) or 0
  end
  return finishes[key]
end

local function weight_of(key)
  if not weights[key] then
    local stored = redis.call('HGET', caps, 'weight=' .. key)
    weights[key] = math.max(1, stored and tonumber(stored:match('^%d+')) or 1)
  end
  return weights[key]
end

local function is_fair()
  return facts.fair == '1'
end

--- The order of a lane whose next job has this place in line.
local function order_of(name, seq)
  if not is_fair() then
    return base_of(name) + seq
  end
  return base_of(name) + math.max(fact('fair_clock'), finish_of(shape_of(name).key))
end

local function note_blocked(lane)
  local list = blocked_here[lane.on] or {}
  list[#list + 1] = lane
  blocked_here[lane.on] = list
end

local function block(lane, on)
  lane.where, lane.on = 'blocked', on
  any_blocked = true
  note_blocked(lane)
end

--- An open lane stands at its order.
local function stand(lane)
  if front and front ~= lane then
    heap_push(open_lanes, front.order, front)
  end
  front = lane
end

--- The open lane of this call that comes first; nil if there is none.
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

--- The first order of the open lanes of this call without this one, or a lower one.
local function first_other(lane)
  return math.min(open_lanes[1] or math.huge, visited_first and tonumber(visited_first) or math.huge,
    front and front ~= lane and front.where == 'open' and front.order or math.huge)
end

local function open_lane(lane)
  lane.where, lane.on = 'open', nil
  opened = true
  stand(lane)
end

--- Give a lane another order; it stays open, or blocked on its scope.
local function reorder(lane, order)
  lane.order, lane.order_text = order, nil
  if lane.where == 'open' then
    stand(lane)
  end
end

--- Take note of a lane, and of where it stands so far: `open`, `blocked` on a scope, or nowhere (nil). `text` is its order,
--- `order` the same as a number.
local function meet_lane(name, where, on, text, order)
  -- No more than 16 fields: a table that grows beyond that costs as much as three.
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

--- Read many lanes at once.
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
      where, on, order = places[i]:match('^(%l+) ?(%S*) (%d+)$')
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
  local nearest
  local here = blocked_here[on]
  if here then
    local left = {}
    for i = 1, #here do
      local lane = here[i]
      if lane.where == 'blocked' and lane.on == on then
        left[#left + 1] = lane
        if not best or lane.order < best then
          best, nearest = lane.order, lane
        end
      end
    end
    blocked_here[on] = left
  end
  return nearest or best and meet_lane(name, 'blocked', on, order)
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
--- scope that it is now blocked on. Whom it kept waiting is looked at here, so it keeps nobody waiting who comes later in
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
local function place(lane, order)
  lane.order, lane.order_text = order, nil
  local names = lane.shape
  for i = 1, #names do
    local scope = scope_of(names[i])
    if scope.resumes and not scope.is_waited_for then
      scope.is_waited_for = first_blocked(scope.name) ~= nil
      if not scope.is_waited_for then
        -- Nobody waits for it, so nobody asked when its limit changed.
        await_no_more(scope)
      end
    end
    local before = order > (promised_until[scope.name] or 0) and promised[scope.name] or 0
    if not has_room(scope, before) or scope.rate and before > 0 then
      block(lane, scope.name)
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

--- Put a job into its lane. `job` may be its record.
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
    place(lane, order_of(lane.name, seq))
  elseif not is_fair() and base_of(lane.name) + seq < lane.order then
    reorder(lane, base_of(lane.name) + seq)
    if lane.where == 'blocked' then
      reevaluate(lane.on)
    end
  end
  opened = opened or lane.where == 'open'
end

--- A page of a lane's members was read. One that is not full is the last one; its entries may still be to be served.
local function turn_page(lane, members, step)
  lane.members, lane.at, lane.offset, lane.last = members, 1, lane.offset + #members, #members < step
end

--- An open lane of Redis has given its head, in passing. `behind` is its order now, nil if it is empty.
local function visit(name, members, behind)
  local at = #visited + 1
  visited[at], visited_members[at], leaving[#leaving + 1] = name, members, members[1]
  if not behind then
    visited_shut[#visited_shut + 1] = name
    return
  end
  local to = #visited_open
  visited_open[to + 1], visited_open[to + 2] = behind, name
  visited_places[to + 1], visited_places[to + 2] = name, 'open ' .. behind
  if not visited_first or behind < visited_first then
    visited_first = behind
  end
end

--- Those lanes become lanes like others, since one of them comes first again.
local function meet_visited()
  for i = 1, #visited do
    local members = visited_members[i]
    local lane = meet_lane(visited[i], 'open', nil, order_at(visited[i], members[1]))
    turn_page(lane, members, FIRST_STEP)
    lane.at = 2
    if members[2] then
      local behind = order_at(lane.name, members[2])
      lane.order, lane.order_text = tonumber(behind), behind
      stand(lane)
    else
      lane.where = nil
    end
  end
  visited, visited_members, visited_first = {}, {}, nil
  visited_open, visited_places, visited_shut = {}, {}, {}
end

--- The first page of a lane.
local function first_members(name)
  return redis.call('ZRANGEBYLEX', waiting, '[' .. name .. '|', '(' .. name .. '}', 'LIMIT', '0', FIRST_TEXT)
end

--- Read the next page of a lane's members. Most lanes give one or two in a call, and those that give more give many.
local function read_page(lane)
  local step = lane.offset == 0 and FIRST_STEP or math.min(8 * lane.offset, 100)
  turn_page(lane, redis.call('ZRANGEBYLEX', waiting, '[' .. lane.name .. '|', '(' .. lane.name .. '}', 'LIMIT',
    digits(lane.offset), digits(step)), step)
  return lane.members
end

--- The first member of a lane; nil if there is none.
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

--- Take a job out of its lane, wherever it stands in it (nil: what leaves has left), and let the lane stand where it then
--- belongs.
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

--- Places to free, once everything is put back: lane names, and ids of their jobs.
local freed_lanes, freed_ids = {}, {}

--- The claim of a job ends: its places in scopes will be free.
local function release(lane_name, id)
  if lane_name then
    freed_lanes[#freed_lanes + 1], freed_ids[#freed_ids + 1] = lane_name, id
  end
end

--- Free the places, then re-evaluate their scopes: (a).
local function free_places()
  local names, size, before = {}, 0, #holders_out
  for i = 1, #freed_lanes do
    local name = freed_lanes[i]
    local shape = LANE_SHAPES.known[name] or shape_of(name)
    local counted, id = shape.counted or shape, freed_ids[i]
    for k = 1, #counted do
      size = size + 1
      names[size], holders_out[before + size] = counted[k], counted[k] .. '|' .. id
    end
  end
  freed_lanes, freed_ids = {}, {}
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

--- Fair queues: a job of this lane is served.
local function serve_fairly(lane)
  local base = base_of(lane.name)
  local tag = lane.order - base
  if tag > fact('fair_clock') then
    set_fact('fair_clock', tag)
  end
  -- From the clock on, not from a time that passed while the lane was blocked: waiting saves nothing up.
  local key = lane.shape.key or ''
  local finish = math.max(fact('fair_clock'), finish_of(key)) + math.ceil(FAIR_STEP / weight_of(key))
  finishes[key] = finish
  finished[key] = true
  if finish > fact('fair_top') then
    set_fact('fair_top', finish)
  end
  if lane.where then
    reorder(lane, base + finish)
  end
end

--- How many more lanes are open than before the call.
local function open_growth()
  local growth = -#visited_shut
  for i = 1, #lane_list do
    local lane = lane_list[i]
    growth = growth + (lane.where == 'open' and 1 or 0) - (lane.was == 'open' and 1 or 0)
  end
  return growth
end

--- The types of all keys that may be written, asked before the first write. Costs nothing if no lane was met.
local function check_lanes()
  if #lane_list > 0 or #visited > 0 or #holders_in > 0 or #holders_out > 0 then
    redis.call('ZCARD', waiting)
    redis.call('ZCARD', open)
    redis.call('ZCARD', blocked)
    redis.call('HLEN', lanes)
    redis.call('ZCARD', fair)
    check_scopes()
  end
end

--- Write where the lanes stand.
local function write_places()
  local joining, gone, unblocked, blocking = {}, {}, {}, {}
  local opening, places, shut = visited_open, visited_places, {}
  for i = 1, #visited_shut do
    gone[i], shut[i] = visited_shut[i], visited_shut[i]
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
  call_many('HSET', lanes, places)
end

--- Write everything that was decided about lanes and scopes.
local function write_lanes()
  if #lane_list > 0 or #visited > 0 then
    write_places()
  end
  if next(finished) then
    local times = {}
    for key in pairs(finished) do
      times[#times + 1], times[#times + 2] = string.format('%.0f', finishes[key]), key
    end
    call_many('ZADD', fair, times)
  end
  write_scopes()
end
